"""The message index of a topic: stored with each entry, searched, and used to count backlogs.

A policy of the namespace or a setting of the broker switches it on (`entry_metadata`). Bytes:
docs/formats/entry-metadata.md.
"""

from magnetar.broker.features.message_index.finding import IndexedEntry, find_index
from magnetar.broker.features.message_index.message_index import (
    MessageIndex,
    exact_backlogs,
    initial_properties,
)

__all__ = ["IndexedEntry", "MessageIndex", "exact_backlogs", "find_index", "initial_properties"]
