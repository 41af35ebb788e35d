"""The metadata store behind the ledgers: one interface, an embedded store and ZooKeeper."""

from magnetar.ledger.metadata.settings import MetadataSettings
from magnetar.ledger.metadata.store import (
    MetadataStore,
    SessionState,
    Versioned,
    Watch,
    WatchEvent,
)
from magnetar.ledger.metadata.url import open_store

__all__ = [
    "MetadataSettings",
    "MetadataStore",
    "SessionState",
    "Versioned",
    "Watch",
    "WatchEvent",
    "open_store",
]
