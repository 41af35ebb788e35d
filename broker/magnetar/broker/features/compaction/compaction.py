"""Compaction of one topic: when it runs, what it stores, and where its result is.

The result is a ledger beside the topic, and a record in the cursor `__compaction`. The record names
the ledger and the horizon, the last entry that was compacted. The order of the steps is fixed. The
new ledger is written and closed. The record is replaced by compare-and-set. The cursor moves to the
horizon, so that trimming may follow. The former ledger is deleted. After a crash at any point, the
topic has the old compacted ledger or the new one, and at worst there is an orphan ledger.

Only the owner of the topic compacts. It checks its tenure in each portion. If another owner has
opened the cursor, the compare-and-set fails.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any, Protocol

import structlog

from magnetar.broker.base.errors import (
    BrokerPersistenceError,
    ConflictError,
    NotAllowedError,
    RequestError,
    ServiceNotReadyError,
)
from magnetar.broker.base.settings.broker import BrokerSettings
from magnetar.broker.features.compaction.compacted_ledger import (
    COMPONENT,
    NO_LEDGER,
    CompactedLedger,
    CompactionError,
    CompactionRecord,
    CompactionStoppedError,
    StoredEntries,
    properties_of,
    record_in,
)
from magnetar.broker.features.compaction.messages import last_index_of
from magnetar.broker.features.compaction.passes import (
    EntryWriter,
    Source,
    Written,
    learn,
    write,
)
from magnetar.broker.topic import Feature, Topic, TopicPort, Work
from magnetar.broker.topic.dispatch.base import DispatchContext
from magnetar.broker.topic.dispatch.compacted import EarlyPlace, early_place, place_properties
from magnetar.broker.topic.subscription import Subscription
from magnetar.cursors import Cursor, CursorError
from magnetar.ledger.errors import LedgerError, NoSuchLedgerError
from magnetar.ledger.log import ManagedLog
from magnetar.ledger.managed_log.log_retention import bytes_behind
from magnetar.ledger.ports import Clock
from magnetar.ledger.position import EARLIEST, Position

_log = structlog.get_logger()


class Status(Enum):
    """Outcome of the last compaction. The values are Pulsar's."""

    NOT_RUN = "NOT_RUN"
    RUNNING = "RUNNING"
    SUCCESS = "SUCCESS"
    ERROR = "ERROR"


class CompactedLedgers(Protocol):
    """Creates, opens and deletes ledgers; `LedgerClient` is one."""

    async def create(
        self,
        *,
        ensemble_size: int,
        write_quorum: int,
        ack_quorum: int,
        custom_metadata: dict[str, str] | None = None,
    ) -> EntryWriter: ...

    async def open(self, ledger_id: int) -> StoredEntries: ...

    async def delete(self, ledger_id: int) -> None: ...


@dataclass(frozen=True, slots=True)
class CompactionCursor:
    """Access to the cursor of a topic's compaction, `CURSOR`."""

    is_stored: Callable[[], Awaitable[bool]]
    open: Callable[[Position], Awaitable[Cursor]]
    """Opens the cursor; creates it at this position if it is not stored."""


@dataclass(frozen=True, slots=True)
class CompactionSurroundings:
    """The objects that all compactions of a broker share."""

    ledgers: CompactedLedgers
    settings: BrokerSettings
    at_once: asyncio.Semaphore
    clock: Clock


@dataclass(slots=True)
class CompactionStats:
    """Figures since the topic was loaded. Times are ms since the epoch; 0 = never."""

    removed: int = 0
    """Messages that the last compaction removed."""
    removed_total: int = 0
    entries: int = 0
    """Entries that the last compaction left, of those that found something new."""
    is_counted: bool = False
    """Whether `entries` are those of the compacted ledger: it was written since the load."""
    succeeded: int = 0
    failed: int = 0
    succeeded_ms: int = 0
    failed_ms: int = 0
    duration_ms: int = 0


class Compaction(Feature):
    """Compaction of one topic that this broker owns. All methods run on the event loop."""

    def __init__(
        self,
        topic: TopicPort,
        log: ManagedLog,
        at: CompactionCursor,
        around: CompactionSurroundings,
        *,
        find_last: Callable[[], Awaitable[tuple[Position, int]]],
    ) -> None:
        """Create the feature. `find_last` finds the last message of the topic, compacted or not."""
        self._topic = topic
        self._log = log
        self._at = at
        self._around = around
        self._find_last = find_last
        self._cursor: Cursor | None = None
        self._opening = asyncio.Lock()
        self._task: asyncio.Task[None] | None = None
        self.compacted: CompactedLedger | None = None
        """The compacted ledger; None before the first compaction."""
        self.status = Status.NOT_RUN
        self.last_error = ""
        self.stats = CompactionStats()

    async def restore(self) -> None:
        """Open the cursor if it is stored, and read its record of the compacted ledger.

        Raises:
            CursorError: the cursor cannot be opened now.
            UnreadableRecordError: the record cannot be read.
        """
        if not await self._at.is_stored():
            return
        cursor = await self.have_cursor()
        self._adopt(record_in(cursor.properties, of=str(self._topic.name)))

    async def have_cursor(self) -> Cursor:
        """Return the cursor; create it if it is missing. From then on it holds the topic's entries.

        Raises:
            CursorError: the cursor cannot be opened now.
            CompactionStoppedError: the topic was closed meanwhile.
        """
        async with self._opening:
            if self._cursor is None:
                async with self._topic.gate.placing():
                    cursor = await self._at.open(EARLIEST)
                    if self._topic.is_closed:
                        cursor.abandon()
                        raise CompactionStoppedError(f"{self._topic.name} is closed")
                    self._cursor = cursor
            return self._cursor

    def _adopt(self, record: CompactionRecord | None) -> None:
        if record is not None:
            self.compacted = CompactedLedger(record, self._around.ledgers.open)

    # Running

    def look(self) -> Work | None:
        """Start a compaction if the topic has reached its threshold.

        Return the work of creating the cursor if that is due, otherwise None.
        """
        threshold = self._topic.policies.compaction_threshold_bytes
        if threshold <= 0 or self.status is Status.RUNNING:
            return None
        if self._cursor is None:
            return self._hold()
        if self._next_horizon() is None:
            return None
        behind = bytes_behind(self._log.ledgers, self._cursor.mark_delete)
        if behind >= threshold:
            self.start()
        return None

    async def _hold(self) -> None:
        await self.have_cursor()

    def start(self) -> None:
        """Start a compaction.

        Raises:
            ConflictError: a compaction is already running.
            ServiceNotReadyError: the topic is closing.
        """
        name = str(self._topic.name)
        if self.status is Status.RUNNING:
            raise ConflictError(f"Compaction already in progress: {name} is being compacted")
        if self._topic.is_leaving:
            raise ServiceNotReadyError(f"{name} is closing")
        self.status, self.last_error = Status.RUNNING, ""
        self._task = asyncio.get_running_loop().create_task(self._run(), name=f"compact-{name}")

    async def finished(self) -> None:
        """Return when no compaction is running."""
        if self._task is not None:
            await asyncio.wait([self._task])

    @property
    def is_working(self) -> bool:
        return self.status is Status.RUNNING

    async def stopped(self) -> None:
        await self.finished()

    def cursors(self) -> Iterable[Cursor]:
        return (self._cursor,) if self._cursor is not None else ()

    def attach(self, subscription: Subscription, context: DispatchContext) -> DispatchContext:
        """Let a subscription that is being opened read the compacted ledger."""
        first = self._log.first_position
        return replace(context, early=EarlyPlace(lambda: self.compacted, first, context.cursor))

    def place_of(self, first: Position) -> Mapping[str, int]:
        """Return the position properties of a new cursor at `first`, which may be trimmed."""
        return place_properties(early_place(self.compacted, self._log.first_position(), first))

    def close(self) -> None:
        """Cancel a running compaction: the topic is closed."""
        if self._task is not None:
            self._task.cancel()

    async def _run(self) -> None:
        clock, name = self._around.clock, str(self._topic.name)
        try:
            async with self._around.at_once:
                started_s = clock.monotonic_s()
                written = await self._compact()
                self.stats.duration_ms = round((clock.monotonic_s() - started_s) * 1000)
        except (CompactionError, LedgerError, CursorError, RequestError) as error:
            self._failed(str(error))
            _log.warning("compaction_failed", topic=name, error=str(error))
        except asyncio.CancelledError:
            self._failed("the topic was closed")
            raise
        except Exception as error:  # noqa: BLE001 - callers must see that it has ended
            self._failed(f"{type(error).__name__}: {error}")
            _log.exception("compaction_broke", topic=name)
        else:
            self.status = Status.SUCCESS
            self.stats.succeeded += 1
            self.stats.succeeded_ms = clock.wall_ms()
            self._count(written)

    def _count(self, written: Written | None) -> None:
        stats = self.stats
        stats.removed = 0 if written is None else written.removed
        if written is None:
            return
        stats.removed_total += written.removed
        stats.entries, stats.is_counted = written.entries, True
        _log.info(
            "topic_compacted",
            topic=str(self._topic.name),
            horizon=str(self._horizon),
            entries=written.entries,
            messages_removed=written.removed,
            milliseconds=stats.duration_ms,
        )

    def _failed(self, reason: str) -> None:
        self.status, self.last_error = Status.ERROR, reason
        self.stats.failed += 1
        self.stats.failed_ms = self._around.clock.wall_ms()

    async def _compact(self) -> Written | None:
        """Write a new compacted ledger; return None if there is nothing new for it."""
        cursor = await self.have_cursor()
        before, horizon = self.compacted, self._next_horizon()
        if horizon is None:
            return None
        settings = self._around.settings
        source = Source(
            self._log,
            before,
            horizon,
            settings,
            clock=self._around.clock,
            check=self._check,
            is_aborted=self._topic.visibility.is_aborted,
        )
        newest = await learn(source, settings)
        writer = await self._create()
        try:
            written = await write(source, newest, writer, settings)
            await writer.close()
            self._check()
        except BaseException:
            writer.abandon()
            await self._delete(writer.ledger_id)
            raise
        ledger_id = writer.ledger_id
        if not written.entries:
            await self._delete(ledger_id)
            ledger_id = NO_LEDGER
        record = CompactionRecord(ledger_id=ledger_id, horizon=horizon)
        # If this fails, it is unknown whether the record names the new ledger.
        await cursor.set_properties(properties_of(record))
        self._adopt(record)
        cursor.ack_cumulative(horizon)
        await cursor.persist()
        if before is not None:
            await self._delete(before.ledger_id)
        return written

    @property
    def _horizon(self) -> Position:
        return self.compacted.horizon if self.compacted is not None else EARLIEST

    def _next_horizon(self) -> Position | None:
        """Return the horizon of a compaction that begins now; None if it would find nothing new.

        Messages of an open transaction have no outcome yet: the horizon stays before them. If they
        begin a ledger, there is no such entry in it.
        """
        last = self._topic.visibility.last
        return last if last.entry_id >= 0 and last > self._horizon else None

    def _check(self) -> None:
        """Check that this broker may continue.

        Raises:
            CompactionStoppedError: the topic is closing, or has moved.
        """
        topic = self._topic
        if topic.is_leaving or not topic.tenure.holds():
            raise CompactionStoppedError(f"{topic.name} is closing, or has moved")

    async def _create(self) -> EntryWriter:
        policies = self._topic.policies
        return await self._around.ledgers.create(
            ensemble_size=policies.persistence.ensemble,
            write_quorum=policies.persistence.write_quorum,
            ack_quorum=policies.persistence.ack_quorum,
            custom_metadata={"component": COMPONENT, "log": self._log.path},
        )

    async def _delete(self, ledger_id: int) -> None:
        """Delete a ledger that no record names; on a failure, leave it to the orphan sweep."""
        if ledger_id == NO_LEDGER:
            return
        try:
            await self._around.ledgers.delete(ledger_id)
        except NoSuchLedgerError:
            pass
        except LedgerError as error:
            _log.warning(
                "compacted_ledger_left_behind",
                topic=str(self._topic.name),
                ledger_id=ledger_id,
                error=str(error),
            )

    # Questions

    async def last_message(self) -> tuple[Position, int] | None:
        """Return the last message of the compacted topic; None before the first compaction.

        The result is the position, and the index in the batch or -1; EARLIEST and -1 if nothing
        remains.

        Raises:
            BrokerPersistenceError: the last message cannot be read now.
        """
        compacted = self.compacted
        if compacted is None:
            return None
        if self._log.last_confirmed > compacted.horizon:
            last = await self._find_last()
            if last[0] > compacted.horizon:
                return last
            # Only messages of aborted transactions, and markers, are after the horizon.
        try:
            found = await compacted.last()
        except LedgerError as error:
            raise BrokerPersistenceError(
                f"{self._topic.name}: the last message cannot be read: {error}"
            ) from error
        if found is None:
            return EARLIEST, -1
        position, entry = found
        return position, last_index_of(entry)

    def shown(self) -> Mapping[str, Any]:
        found: dict[str, Mapping[str, int]] = {"compaction": self.describe()}
        if self.compacted is not None:
            # Entries of a ledger from before this load were not counted.
            entries = self.stats.entries if self.stats.is_counted else -1
            ledger_id = self.compacted.ledger_id
            found["compacted_ledger"] = {"ledgerId": ledger_id, "entries": entries}
        return found

    def describe(self) -> Mapping[str, int]:
        """Return the figures for the statistics of the topic, in Pulsar's words."""
        return {
            "lastCompactionRemovedEventCount": self.stats.removed,
            "lastCompactionSucceedTimestamp": self.stats.succeeded_ms,
            "lastCompactionFailedTimestamp": self.stats.failed_ms,
            "lastCompactionDurationTimeInMills": self.stats.duration_ms,
        }


def compaction_of(topic: Topic) -> Compaction:
    """Return the compaction of a topic.

    Raises:
        NotAllowedError: the topic is not persistent.
    """
    found = topic.find(Compaction)
    if found is None:
        raise NotAllowedError(f"{topic.name} is not persistent: there is nothing to compact")
    return found
