"""Tiered storage: copies a topic's closed ledgers to an object store, by policy and on demand."""

from magnetar.broker.features.offloading.composition import (
    object_keys,
    object_ledgers,
    offload_surroundings,
)
from magnetar.broker.features.offloading.manifests import Manifests
from magnetar.broker.features.offloading.offload import (
    Offload,
    OffloadStatus,
    OffloadSurroundings,
    offload_of,
)
from magnetar.broker.features.offloading.scrubbing import Scrubbing

__all__ = [
    "Manifests",
    "Offload",
    "OffloadStatus",
    "OffloadSurroundings",
    "Scrubbing",
    "object_keys",
    "object_ledgers",
    "offload_of",
    "offload_surroundings",
]
