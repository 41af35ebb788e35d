"""The transactions of a restored topic: a new log of the entries that readers must skip.

Coordinators are not restored, and their ids begin at 0 again. So the restored entries are read
once, up to their end. Entries of transactions that were aborted, or that do not end within the
restored entries, are skipped for good. The topic's new transaction log records them, but no id of a
former transaction: a new transaction may get the same id.

Layout: docs/formats/transactions.md.
"""

import asyncio
import random
from collections.abc import Mapping
from typing import Any

from magnetar.broker.features.backup.planning import RestoredLog
from magnetar.broker.features.transactions.buffer_state import BufferState
from magnetar.broker.features.transactions.ids import EndedTransactions
from magnetar.broker.features.transactions.markers import mark_of
from magnetar.broker.features.transactions.topic_log import (
    TopicTransactionLog,
    property_of,
    since_in,
)
from magnetar.ledger.client import LedgerClient
from magnetar.ledger.managed_log.log_metadata import LogMetadata
from magnetar.ledger.managed_log.log_takeover import always
from magnetar.ledger.metadata.store import MetadataStore
from magnetar.ledger.offloading.store_set import StoredLedgers
from magnetar.ledger.ports import Clock, ObjectPlace
from magnetar.ledger.position import Position
from magnetar.ledger.settings import LogConfig
from magnetar.sdk.wire import TopicName

_READ_BYTES = 4 << 20
_PART_BYTES = 1 << 20


async def aborted_in(restored: RestoredLog, objects: StoredLedgers) -> BufferState:
    """Read the restored entries; return the state that hides the ones of uncommitted transactions.

    Raises:
        BrokerPersistenceError: the log's property about its transactions cannot be read.
        ObjectError: an object cannot be read.
    """
    old = restored.backup.manifest.node
    since = since_in(old.properties, of=restored.path)
    assert since is not None, "the log has had transactions"
    state = BufferState()
    for ledger in restored.node.ledgers:
        if (ledger.ledger_id, ledger.entries - 1) <= since:
            continue
        found = ledger.object
        assert found is not None
        base = restored.node.object_bases[found.base]
        place = ObjectPlace(
            base.store, base.key(ledger.ledger_id, found.attempt), ledger.ledger_id, found.attempt
        )
        reader = await objects.open(place, password=b"")
        try:
            at = since.entry_id + 1 if ledger.ledger_id == since.ledger_id else 0
            while at < ledger.entries:
                entries = await reader.read(at, ledger.entries - 1, bytes_max=_READ_BYTES)
                _note(state, ledger.ledger_id, at, entries)
                at += len(entries)
                await asyncio.sleep(0)
        finally:
            await reader.close()
    for txn in list(state.open):
        state.on_end(txn, is_committed=False)
    state.ended = EndedTransactions()
    return state


def _note(state: BufferState, ledger_id: int, first: int, entries: list[bytes]) -> None:
    for entry_id, entry in enumerate(entries, first):
        mark = mark_of(entry)
        if mark is None:
            continue
        if mark.is_committed is None:
            state.on_entry(mark.transaction, Position(ledger_id, entry_id), mark.sender)
        else:
            state.on_end(mark.transaction, is_committed=mark.is_committed)


async def write_down(
    client: LedgerClient,
    store: MetadataStore,
    topic: TopicName,
    state: BufferState,
    through: Position,
    config: LogConfig,
    *,
    clock: Clock,
    random: random.Random,
) -> None:
    """Write the transaction log of a topic that does not exist yet; replace it if it exists.

    Args:
        through: the last restored entry.

    Raises:
        LedgerError: it cannot be written now; call again.
    """

    def take() -> Mapping[str, Any]:
        return {
            "kind": "snapshot",
            "through": list(through),
            "buffer": state.dump(),
            "pending": {},
        }

    log = await TopicTransactionLog.open(
        client,
        store,
        topic,
        config,
        clock=clock,
        random=random,
        may_own=always,
        part_bytes_max=_PART_BYTES,
    )
    try:
        await log.write_snapshot(take)
    finally:
        await log.close()


def with_past(node: LogMetadata) -> LogMetadata:
    """Return a node with the property that its transactions come after the restored entries."""
    return node.with_properties(property_of(node.last_listed))
