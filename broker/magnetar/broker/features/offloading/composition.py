"""Composition of a broker's tiered storage: object stores, copiers, scrubbers and readers."""

import random
from collections.abc import Sequence
from pathlib import Path

from magnetar.broker.base.entry import publish_time_ms_of
from magnetar.broker.base.settings.objects import ObjectSettings
from magnetar.broker.features.offloading.manifests import ManifestSurroundings, schemas_in
from magnetar.broker.features.offloading.offload import OffloadSurroundings
from magnetar.broker.schemas.registry import SchemaRegistry
from magnetar.ledger.client import LedgerClient
from magnetar.ledger.offloading.object_encryption import NO_KEYS, ObjectKeyRing
from magnetar.ledger.offloading.object_key_file import read_object_keys
from magnetar.ledger.offloading.object_reader import ObjectReads
from magnetar.ledger.offloading.object_scrubber import ObjectScrubber
from magnetar.ledger.offloading.offloader import BlockFacts, Offloader
from magnetar.ledger.offloading.store_set import StoredLedgers, StoreSet
from magnetar.ledger.ports import Clock


def offload_surroundings(
    settings: ObjectSettings,
    stores: StoreSet,
    client: LedgerClient,
    *,
    schemas: SchemaRegistry,
    keys: ObjectKeyRing,
    clock: Clock,
    random: random.Random,
    made_by: str,
) -> OffloadSurroundings | None:
    """Return the parts that offload a broker's topics; None if it has no object store."""
    if not settings.object_stores:
        return None
    offloader = Offloader(
        client,
        stores,
        copies_at_once=settings.offload_copies_at_once,
        copy_bytes_per_s_max=settings.offload_bytes_per_s_max,
        find_instance_id=client.registry.instance_id,
        made_by=made_by,
        clock=clock,
        random=random,
        describe=block_facts,
        keys=keys,
    )
    scrubber = ObjectScrubber(
        stores, bytes_per_s_max=settings.object_scrub_bytes_per_s_max, clock=clock
    )
    manifests = ManifestSurroundings(
        stores, offloader.instance_id, schemas_in(schemas), settings, clock
    )
    return OffloadSurroundings(offloader, scrubber, stores.urls, settings, clock, manifests)


def object_ledgers(
    settings: ObjectSettings, stores: StoreSet, clock: Clock, *, keys: ObjectKeyRing
) -> StoredLedgers | None:
    """Return the reader of ledgers in a broker's object stores; None if it has no object store."""
    if not settings.object_stores:
        return None
    return StoredLedgers(stores, ObjectReads(settings, clock, keys=keys))


def object_keys(settings: ObjectSettings) -> ObjectKeyRing:
    """Read the object keys from the file that the settings name; no keys if they name none.

    Raises:
        ObjectKeyConfigError: the file, or the key for new objects, is invalid.
    """
    if not settings.object_key_file:
        return NO_KEYS
    return read_object_keys(Path(settings.object_key_file), new_key_id=settings.object_key_id)


def block_facts(entries: Sequence[bytes]) -> BlockFacts:
    """Return the publish times of messages in entries; none if an entry has no publish time."""
    times = [publish_time_ms_of(entry) for entry in entries]
    known = [time_ms for time_ms in times if time_ms is not None]
    return BlockFacts(publish_ms=known if len(known) == len(times) else ())
