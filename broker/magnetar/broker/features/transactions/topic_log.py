"""A topic's transaction log: a managed log beside the topic's own, for what must survive.

It contains the acknowledgements of open transactions, the ends, and occasional snapshots. A
snapshot contains all of these, and the state of the topic's own log up to a position. A topic has
no transaction log before its first transaction. A property of the topic's log says that it exists,
and where it began.

A `Record` is an append to this log or another: its future is resolved in the order of the log.

Layouts: docs/formats/transactions.md.
"""

import asyncio
import json
import random
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final

import structlog

from magnetar.broker.base import naming
from magnetar.broker.base.errors import BrokerPersistenceError
from magnetar.broker.features.transactions.snapshot_parts import SnapshotParts, encode_parts
from magnetar.ledger.client import LedgerClient
from magnetar.ledger.errors import LedgerError
from magnetar.ledger.log import ManagedLog
from magnetar.ledger.managed_log.log_deletion import delete_marked, is_marked, mark_deleted
from magnetar.ledger.metadata.store import MetadataStore
from magnetar.ledger.ports import Clock
from magnetar.ledger.position import Position
from magnetar.ledger.settings import LogConfig
from magnetar.sdk.wire import TopicName

_log = structlog.get_logger()


class Record:
    """Consecutive entries that are appended together."""

    __slots__ = ("_on_stored", "done", "payloads")

    def __init__(
        self, payloads: Sequence[bytes], on_stored: Callable[[Position], None] | None = None
    ) -> None:
        """`on_stored` runs when they are durable, in log order, with the position of the first
        one."""
        self.payloads: Sequence[bytes] = payloads
        self.done: asyncio.Future[Position] = asyncio.get_running_loop().create_future()
        self.done.add_done_callback(_look)  # because there may be no waiter
        self._on_stored = on_stored

    def on_appended(self, ledger_id: int, first_entry_id: int) -> None:
        position = Position(ledger_id, first_entry_id)
        if self._on_stored is not None:
            self._on_stored(position)
        if not self.done.done():
            self.done.set_result(position)

    def on_failed(self, error: LedgerError) -> None:
        if not self.done.done():
            self.done.set_exception(error)


def _look(done: "asyncio.Future[Position]") -> None:
    if not done.cancelled():
        done.exception()


PROPERTY: Final = "magnetar.transactions"
FORMAT: Final = 1

_READ_ENTRIES = 500
_READ_BYTES = 4 << 20

Stored = dict[str, Any]


def property_of(since: Position) -> dict[str, str | None]:
    """Return the property that says the topic has transactions, all of them behind `since`."""
    return {PROPERTY: json.dumps({"format": FORMAT, "since": list(since)})}


def since_in(properties: Mapping[str, str], *, of: str) -> Position | None:
    """Return the position behind which a topic's transactions are; None if it has none.

    Raises:
        BrokerPersistenceError: the property is not one for this release.
    """
    value = properties.get(PROPERTY)
    if value is None:
        return None
    try:
        stored = json.loads(value)
        if stored["format"] == FORMAT:
            return Position(*stored["since"])
    except (ValueError, KeyError, TypeError) as error:
        raise BrokerPersistenceError(
            f"{of}: what it says of its transactions cannot be understood: {error}"
        ) from error
    raise BrokerPersistenceError(
        f"{of}: its transactions have format {stored['format']}; this release knows {FORMAT}"
    )


def path_of(name: TopicName) -> str:
    """Return the path of a topic's transaction log: beside those of topics, not among them."""
    local = name.storage_name.rpartition("/")[2]
    return f"{naming.ROOT}/{name.namespace_name}/transactions/{local}"


class TopicTransactionLog:
    """The open transaction log of one topic."""

    def __init__(self, log: ManagedLog, *, part_bytes_max: int) -> None:
        self._log = log
        self._part_bytes_max = part_bytes_max
        self.records = 0
        """Records since the last durable snapshot."""

    @classmethod
    async def open(
        cls,
        client: LedgerClient,
        store: MetadataStore,
        name: TopicName,
        config: LogConfig,
        *,
        clock: Clock,
        random: random.Random,
        may_own: Callable[[], bool],
        part_bytes_max: int,
    ) -> "TopicTransactionLog":
        """Take the log over, or create it.

        Raises:
            LedgerError: as `ManagedLog.open`.
        """
        path = path_of(name)
        while True:
            log = await ManagedLog.open(
                client, store, path, config, clock=clock, random=random, may_own=may_own
            )
            if not is_marked(log.properties):
                return cls(log, part_bytes_max=part_bytes_max)
            # A remainder of a deleted topic of the same name.
            await log.close()
            await delete_marked(client, store, path)

    def on_fenced(self, callback: Callable[[], None]) -> None:
        self._log.on_fenced(callback)

    # Writing

    def append(self, record: Stored) -> Record:
        """Append a record; its future is resolved when it is durable."""
        self.records += 1
        appended = Record([json.dumps(record).encode()])
        self._log.append(appended)
        return appended

    async def write_snapshot(self, take: Callable[[], Mapping[str, Any]]) -> None:
        """Write a snapshot, and delete what is older. `take` is called right before the append.

        Raises:
            LedgerError: the snapshot may not be written; what was there before still counts.
        """
        await self._log.rotate()
        snapshot = json.dumps(take())
        covered = self.records
        first = Record(encode_parts(snapshot, bytes_max=self._part_bytes_max))
        self._log.append(first)
        position = await first.done
        self.records -= covered
        await self._log.shrink(position)

    # Reading

    async def read(self) -> Sequence[Stored]:
        """Return all records since the last complete snapshot.

        Raises:
            LedgerError: not all of them can be read now.
        """
        records: list[Stored] = []
        parts = SnapshotParts()
        log = self._log
        position = log.first_position()
        while position <= log.last_confirmed:
            first, entries = await log.read_range(
                position, entries_max=_READ_ENTRIES, bytes_max=_READ_BYTES
            )
            if not entries:
                break
            for entry in entries:
                record = parts.join(json.loads(entry))
                if record is None:
                    continue
                if record["kind"] == "snapshot":
                    records.clear()
                records.append(record)
            last = Position(first.ledger_id, first.entry_id + len(entries) - 1)
            position = log.next_position(last)
        self.records = len(records)
        return records

    # The end

    def abandon(self, reason: str) -> None:
        """Stop writing to the log."""
        self._log.abandon(reason)

    async def close(self) -> None:
        await self._log.close()


async def delete_log(
    client: LedgerClient,
    store: MetadataStore,
    name: TopicName,
    check: Callable[[], Awaitable[None]] | None = None,
) -> None:
    """Delete the transaction log, if any, of a topic that is being deleted.

    `check`: awaited before the log is marked; it raises to leave the log as it is.

    Raises:
        LedgerError: call again.
        Every error of `check`.
    """
    path = path_of(name)
    if await mark_deleted(store, path, check):
        await delete_marked(client, store, path)
