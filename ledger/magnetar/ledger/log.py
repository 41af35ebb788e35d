"""The managed log: an unbounded log made of ledgers, with one owner at a time.

The list of ledgers lies in one metadata node and changes by compare-and-set only. Whoever opens the
log for writing takes it over: it recovers (fences and closes) what the previous owner may still be
writing, creates a ledger, and sets the list. From then on the previous owner can neither add (its
ledger is fenced) nor chain another ledger (its version is stale), whatever it believes. Not one
entry goes into a ledger before the list names it (rule 2.2).

Batches of one call go to one ledger under consecutive entry ids, and are reported in the order of
the calls. When a ledger is full, or its bookies fail, it is closed at a known last entry before
anything that was not confirmed is written again to the next one (rule 3.1), so no entry is in the
log twice or out of order.

Source: managed ledger, sections 1 to 4 and 9. What this does not do: cursors, trimming, caching.
"""

import asyncio
import random
from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from enum import Enum, auto
from functools import partial
from typing import NamedTuple, Protocol

import structlog

from magnetar.ledger.client import LedgerClient
from magnetar.ledger.errors import (
    LedgerError,
    LedgerFencedError,
    LogClosedError,
    LogDataLossError,
    LogError,
    LogFencedError,
    LogUnavailableError,
    NoSuchLedgerError,
)
from magnetar.ledger.ledger_metadata import LedgerMetadata
from magnetar.ledger.log_list import LogList
from magnetar.ledger.log_metadata import LogLedger
from magnetar.ledger.log_shape import LogShape
from magnetar.ledger.metadata.store import MetadataStore
from magnetar.ledger.ports import Clock
from magnetar.ledger.position import Position
from magnetar.ledger.reader import LedgerReader
from magnetar.ledger.settings import LogConfig
from magnetar.ledger.writer import LedgerWriter

log = structlog.get_logger()

_READERS_MAX = 16
_RETRY_DELAY_S = 0.05
_RETRY_DELAY_MAX_S = 1.0


class AppendBatch(Protocol):
    """What the log is given to append. Exactly one of the callbacks runs, once."""

    @property
    def payloads(self) -> Sequence[bytes]: ...

    def on_appended(self, ledger_id: int, first_entry_id: int) -> None:
        """All payloads are durable, as consecutive entries from `first_entry_id` on."""
        ...

    def on_failed(self, error: LogError) -> None:
        """They may or may not be in the log; the outcome is unknown unless it was refused."""
        ...


class LogEntry(NamedTuple):
    """One entry of a log."""

    position: Position
    payload: bytes


class _State(Enum):
    OPEN = auto()
    REPLACING = auto()
    """The current ledger is being closed and the next one created; appends wait."""
    UNAVAILABLE = auto()
    """That did not work within `repair_timeout_s`; appends fail until the next try."""
    FENCED = auto()
    CLOSED = auto()


class _Pending:
    __slots__ = ("batch", "first_entry_id", "ledger_id")

    def __init__(self, batch: AppendBatch, ledger_id: int) -> None:
        self.batch = batch
        self.ledger_id = ledger_id
        self.first_entry_id = -1


class ManagedLog:
    """The owner's handle of a log. Make one with `ManagedLog.open`."""

    def __init__(
        self,
        client: LedgerClient,
        store: MetadataStore,
        path: str,
        config: LogConfig,
        *,
        clock: Clock,
        random: random.Random,
    ) -> None:
        self._client = client
        self.path = path
        self._config = config
        self._clock = clock
        self._random = random
        self._list = LogList(store, path, properties=config.properties)
        self._shape = LogShape([])
        self._last_confirmed = Position(-1, -1)
        self._writer: LedgerWriter | None = None
        self._writer_since_s = 0.0
        self._age_max_s = config.ledger_age_max_s
        self._spare: LedgerWriter | None = None
        """A ledger that was created, but is not in the list yet."""
        self._state = _State.CLOSED
        self._is_closing = False
        self._retry_at_s = 0.0
        self._broken_since_s: float | None = None
        """When a ledger failed; None again once an entry is confirmed."""
        self._pending: deque[_Pending] = deque()
        self._queue: deque[AppendBatch] = deque()
        self._queue_bytes = 0
        self._replacing: asyncio.Task[None] | None = None
        self._readers: OrderedDict[int, LedgerReader] = OrderedDict()
        self._on_fenced: list[Callable[[], None]] = []
        self._close_lock = asyncio.Lock()

    # Opening -------------------------------------------------------------------------------------

    @classmethod
    async def open(
        cls,
        client: LedgerClient,
        store: MetadataStore,
        path: str,
        config: LogConfig,
        *,
        clock: Clock,
        random: random.Random,
    ) -> "ManagedLog":
        """Take the log over, creating it if need be.

        Raises:
            LogFencedError: another owner opened it at the same time, and was faster.
            LogDataLossError: a ledger of the list has no metadata any more.
            RecoveryUndecidedError, NotEnoughBookiesError, MetadataError: try again later.
        """
        self = cls(client, store, path, config, clock=clock, random=random)
        await self._take_over()
        return self

    async def _take_over(self) -> None:
        await self._list.load()
        ledgers = await self._recover_ledgers(self._list.ledgers)
        empty = [ledger for ledger in ledgers if ledger.entries == 0]
        writer = await self._create_ledger()
        try:
            await self._list.update(
                [ledger for ledger in ledgers if ledger.entries > 0] + [LogLedger(writer.ledger_id)]
            )
        except LogFencedError:
            await self._delete_ledger(writer.ledger_id)
            raise
        self._use_writer(writer)
        self._last_confirmed = self._shape.last_confirmed
        self._state = _State.OPEN
        # Only after our own list is set: the previous owner must not be able to add to a ledger
        # that bookies have already forgotten (ledger protocol D17).
        for ledger in empty:
            await self._delete_ledger(ledger.ledger_id)
        log.info(
            "log_opened",
            path=self.path,
            ledger_id=writer.ledger_id,
            ledgers=len(self._list.ledgers),
        )

    async def _recover_ledgers(self, ledgers: Sequence[LogLedger]) -> list[LogLedger]:
        """Close the last two ledgers and every other one that is not known to be closed.

        Two, because a previous owner in the middle of a change of ledgers may still be writing to
        the one before the last.
        """
        recovered: list[LogLedger] = []
        for at, ledger in enumerate(ledgers):
            if ledger.is_closed and at < len(ledgers) - 2:
                recovered.append(ledger)
                continue
            try:
                reader = await self._client.open_and_recover(ledger.ledger_id)
            except NoSuchLedgerError as error:
                # Whoever sets the list before us deletes the ledgers that it found empty.
                await self._list.check_unchanged()
                raise LogDataLossError(
                    f"{self.path}: ledger {ledger.ledger_id} is listed but its metadata is gone; "
                    f"the log is not opened, so that nothing is skipped in silence"
                ) from error
            recovered.append(
                LogLedger(
                    ledger.ledger_id,
                    entries=reader.metadata.last_entry_id + 1,
                    bytes=reader.metadata.length,
                    closed_ms=ledger.closed_ms or self._clock.wall_ms(),
                )
            )
        return recovered

    async def _create_ledger(self) -> LedgerWriter:
        return await self._client.create(
            ensemble_size=self._config.ensemble_size,
            write_quorum=self._config.write_quorum,
            ack_quorum=self._config.ack_quorum,
            password=self._config.password,
            custom_metadata={"component": "managed-log", "log": self.path},
        )

    async def _delete_ledger(self, ledger_id: int) -> None:
        """Delete a ledger that nobody refers to; what fails leaves an orphan, no more."""
        try:
            await self._client.delete(ledger_id)
        except NoSuchLedgerError:
            pass
        except LedgerError as error:
            log.warning("ledger_left_behind", path=self.path, ledger_id=ledger_id, error=str(error))

    def _use_writer(self, writer: LedgerWriter) -> None:
        self._writer = writer
        self._writer_since_s = self._clock.monotonic_s()
        # Spread, so that logs that were opened together do not roll together.
        self._age_max_s = self._config.ledger_age_max_s * (1 + 0.05 * self._random.random())
        self._shape = LogShape(
            [(ledger.ledger_id, ledger.entries) for ledger in self._list.ledgers]
        )

    # Appending -----------------------------------------------------------------------------------

    @property
    def pending_bytes(self) -> int:
        """Bytes appended and not yet confirmed."""
        writer_bytes = self._writer.pending_bytes if self._writer is not None else 0
        return writer_bytes + self._queue_bytes

    @property
    def pending_batches(self) -> int:
        """Batches appended and not yet reported."""
        return len(self._pending) + len(self._queue)

    def append(self, batch: AppendBatch) -> None:
        """Append a batch. Its callback runs later, in the order of the calls."""
        if self._is_closing:
            self._refuse(batch, self._why_closed())
        elif self._state is _State.OPEN:
            self._write(batch)
        elif self._state is _State.REPLACING or self._is_time_to_retry():
            self._enqueue(batch)
        else:
            self._refuse(batch, self._why_closed())

    def _is_time_to_retry(self) -> bool:
        if self._state is not _State.UNAVAILABLE:
            return False
        if self._clock.monotonic_s() < self._retry_at_s:
            return False
        self._start_replacing(force=True)
        return True

    def _why_closed(self) -> LogError:
        if self._state is _State.FENCED:
            return LogFencedError(f"{self.path}: another owner has taken the log over")
        if self._state is _State.UNAVAILABLE and not self._is_closing:
            return LogUnavailableError(
                f"{self.path}: no ledger can be written to just now; the next try is at most "
                f"{self._config.unavailable_retry_s} s away"
            )
        return LogClosedError(f"{self.path}: the log is closed")

    def _refuse(self, batch: AppendBatch, error: LogError) -> None:
        asyncio.get_running_loop().call_soon(batch.on_failed, error)

    def _enqueue(self, batch: AppendBatch) -> None:
        size = sum(map(len, batch.payloads))
        if self._queue_bytes + size > self._config.pending_bytes_max:
            self._refuse(
                batch,
                LogUnavailableError(
                    f"{self.path}: {self._queue_bytes} bytes wait for the next ledger; "
                    f"pending_bytes_max is {self._config.pending_bytes_max}"
                ),
            )
            return
        self._queue.append(batch)
        self._queue_bytes += size

    def _write(self, batch: AppendBatch) -> None:
        writer = self._writer
        assert writer is not None
        pending = _Pending(batch, writer.ledger_id)
        try:
            pending.first_entry_id = writer.append(batch.payloads, partial(self._on_done, pending))
        except LedgerFencedError as error:
            # Heard when nothing was pending: the last add had its ack quorum before.
            self._fence(error)
            self._refuse(batch, self._why_closed())
            return
        except LedgerError as error:
            if writer.has_failed and not self._is_closing:
                self._start_repair(error)
            if self._state is _State.REPLACING:
                self._enqueue(batch)
            else:
                self._refuse(batch, LogUnavailableError(f"{self.path}: {error}"))
            return
        self._pending.append(pending)
        if self._is_full(writer) and not self._is_closing:
            self._start_replacing(force=False)

    def _is_full(self, writer: LedgerWriter) -> bool:
        config = self._config
        age_s = self._clock.monotonic_s() - self._writer_since_s
        if age_s >= self._age_max_s:
            return True
        is_large = (
            writer.entries_added >= config.ledger_entries_max
            or writer.bytes_added >= config.ledger_bytes_max
        )
        return is_large and age_s >= config.ledger_age_min_s

    def _on_done(self, pending: _Pending, error: LedgerError | None) -> None:
        if self._state in (_State.FENCED, _State.CLOSED):
            return  # already reported as failed; nothing is acknowledged any more
        if error is None:
            assert self._pending[0] is pending
            self._pending.popleft()
            last = pending.first_entry_id + len(pending.batch.payloads) - 1
            self._last_confirmed = Position(pending.ledger_id, last)
            self._shape.grow(last + 1)
            self._broken_since_s = None
            pending.batch.on_appended(pending.ledger_id, pending.first_entry_id)
        elif isinstance(error, LedgerFencedError):
            self._fence(error)
        elif self._state is _State.OPEN and not self._is_closing:
            # The batch stays pending: once the ledger is closed at a known end, it is either
            # part of it or written again.
            self._start_repair(error)

    def _fence(self, error: LedgerError) -> None:
        if self._state in (_State.FENCED, _State.CLOSED):
            return
        log.warning("log_fenced", path=self.path, error=str(error))
        self._state = _State.FENCED
        self._fail_all(LogFencedError(f"{self.path}: another owner has taken the log over"))
        for callback in self._on_fenced:
            callback()

    def on_fenced(self, callback: Callable[[], None]) -> None:
        """Run `callback` once when another owner has taken the log over."""
        self._on_fenced.append(callback)

    def _fail_all(self, error: LogError) -> None:
        """Report everything that waits as failed, in order."""
        batches = [pending.batch for pending in self._pending] + list(self._queue)
        self._pending.clear()
        self._queue.clear()
        self._queue_bytes = 0
        for batch in batches:
            self._fail(batch, error)

    def _fail(self, batch: AppendBatch, error: LogError) -> None:
        """A bug of one caller must not keep those behind it from hearing their outcome."""
        try:
            batch.on_failed(error)
        except Exception as bug:  # noqa: BLE001  # handed on to the loop's handler
            asyncio.get_running_loop().call_exception_handler(
                {"message": f"the outcome of an append to {self.path}", "exception": bug}
            )

    # Changing ledgers ----------------------------------------------------------------------------

    def _start_repair(self, error: LedgerError) -> None:
        """Replace a ledger that failed.

        The time for repairs begins when a ledger fails and ends when an entry is confirmed, not
        when the next ledger is there: bookies whose disks are full let each new ledger fail.
        """
        log.warning("ledger_failed", path=self.path, error=str(error))
        now_s = self._clock.monotonic_s()
        if self._broken_since_s is None:
            self._broken_since_s = now_s
        if now_s - self._broken_since_s > self._config.repair_timeout_s:
            self._give_up(error)
        else:
            self._start_replacing(force=True)

    def _start_replacing(self, *, force: bool) -> None:
        self._state = _State.REPLACING
        self._replacing = asyncio.get_running_loop().create_task(
            self._replace_writer(force), name=f"replace-ledger-{self.path}"
        )

    async def _replace_writer(self, force: bool) -> None:
        """Close the current ledger, chain the next, and go on with what waits.

        `force` closes at the last add confirmed without waiting for pending adds.

        """
        started_s = self._clock.monotonic_s()
        if self._broken_since_s is not None:
            # Hardly a wait at first; longer and longer when one new ledger after the other fails.
            broken_s = started_s - self._broken_since_s
            await asyncio.sleep(min(broken_s / 4, _RETRY_DELAY_MAX_S))
        delay_s = _RETRY_DELAY_S
        while True:
            try:
                await self._try_replace_writer(force)
            except (LogFencedError, LedgerFencedError, NoSuchLedgerError) as error:
                # Our ledger is only deleted by an owner that found it empty.
                self._fence(error)
                await self._drop_spare()
                return
            except LedgerError as error:
                if self._state is not _State.REPLACING:
                    return  # closed meanwhile
                force = True
                if self._clock.monotonic_s() - started_s > self._config.repair_timeout_s:
                    self._give_up(error)
                    return
                await asyncio.sleep(delay_s)
                delay_s = min(delay_s * 2, _RETRY_DELAY_MAX_S)
            else:
                return

    async def _try_replace_writer(self, force: bool) -> None:
        old = self._writer
        assert old is not None
        creating = asyncio.ensure_future(self._take_spare())
        try:
            closed = await old.close(force=force)
        except BaseException:
            await asyncio.wait([creating])
            creating.exception()  # retrieved: the failure to close is what counts
            raise
        new = await creating
        await self._list.update([*self._list_with_closed(closed), LogLedger(new.ledger_id)])
        self._spare = None
        if self._state is not _State.REPLACING:
            return  # closed meanwhile
        self._use_writer(new)
        self._state = _State.OPEN
        log.info(
            "ledger_replaced",
            path=self.path,
            ledger_id=old.ledger_id,
            last_entry_id=closed.last_entry_id,
            next_ledger_id=new.ledger_id,
        )
        self._resume(closed.last_entry_id)
        if closed.last_entry_id < 0:
            await self._delete_ledger(old.ledger_id)

    def _list_with_closed(self, closed: LedgerMetadata) -> list[LogLedger]:
        """The list with the counters of the ledger that was closed; without it if it is empty."""
        listed = [item for item in self._list.ledgers if item.ledger_id != closed.ledger_id]
        if closed.last_entry_id >= 0:
            listed.append(
                LogLedger(
                    closed.ledger_id,
                    entries=closed.last_entry_id + 1,
                    bytes=closed.length,
                    closed_ms=self._clock.wall_ms(),
                )
            )
        return listed

    async def _take_spare(self) -> LedgerWriter:
        if self._spare is None:
            self._spare = await self._create_ledger()
        return self._spare

    async def _drop_spare(self) -> None:
        spare, self._spare = self._spare, None
        if spare is not None and self._list.is_resolved:
            await self._delete_ledger(spare.ledger_id)

    def _resume(self, last_entry_id: int) -> None:
        """Write again what the closed ledger does not hold, then what waited, in order.

        A batch that is in the closed ledger in part cannot be completed: its entries would not be
        consecutive. It fails, and so does everything behind it, so that a client that sends again
        keeps its order.
        """
        waiting = [pending.batch for pending in self._pending]
        is_torn = bool(self._pending) and self._pending[0].first_entry_id <= last_entry_id
        self._pending.clear()
        waiting += self._queue
        self._queue.clear()
        self._queue_bytes = 0
        if is_torn:
            error = LogUnavailableError(f"{self.path}: the ledger failed in the middle of a batch")
            for batch in waiting:
                self._fail(batch, error)
            return
        for at, batch in enumerate(waiting):
            if self._state is not _State.OPEN:  # full again already
                for rest in waiting[at:]:
                    self._enqueue(rest)
                return
            self._write(batch)

    def _give_up(self, cause: LedgerError) -> None:
        log.error("log_unavailable", path=self.path, error=str(cause))
        self._state = _State.UNAVAILABLE
        self._retry_at_s = self._clock.monotonic_s() + self._config.unavailable_retry_s
        self._fail_all(LogUnavailableError(f"{self.path}: no ledger can be written to: {cause}"))

    # Positions and reading -----------------------------------------------------------------------

    @property
    def last_confirmed(self) -> Position:
        """The last confirmed entry; (ledger, -1) when the log holds none."""
        return self._last_confirmed

    @property
    def ledgers(self) -> Sequence[LogLedger]:
        """The ledger list; the last ledger's counters are those of now."""
        ledgers = list(self._list.ledgers)
        if self._writer is not None and ledgers and not ledgers[-1].is_closed:
            writer = self._writer
            ledgers[-1] = LogLedger(
                writer.ledger_id, entries=writer.last_add_confirmed + 1, bytes=writer.length
            )
        return ledgers

    @property
    def properties(self) -> dict[str, str]:
        return self._list.properties

    def first_position(self) -> Position:
        """The first entry there is, or the next to be written."""
        return self._shape.first_at_or_after(Position(-1, -1))

    def next_position(self, position: Position) -> Position:
        """The entry after `position`, existing or, at the end, the next to be written."""
        return self._shape.next_position(position)

    def previous_position(self, position: Position) -> Position:
        """The entry before `position`; (first ledger, -1) when there is none."""
        return self._shape.previous_position(position)

    def entries_between(self, lower: Position, upper: Position) -> int:
        """Number of confirmed entries in (lower, upper]."""
        return self._shape.entries_between(lower, upper)

    async def read(self, start: Position, *, entries_max: int, bytes_max: int) -> list[LogEntry]:
        """Confirmed entries from `start` on, of one ledger: at least one, or none at the end.

        Raises:
            As `read_range`.
        """
        first, payloads = await self.read_range(start, entries_max=entries_max, bytes_max=bytes_max)
        ledger_id, first_entry_id = first
        return [
            LogEntry(Position(ledger_id, first_entry_id + at), payload)
            for at, payload in enumerate(payloads)
        ]

    async def read_range(
        self, start: Position, *, entries_max: int, bytes_max: int
    ) -> tuple[Position, list[bytes]]:
        """The same without an object per entry: the first position, and consecutive payloads.

        Raises:
            LedgerError: no replica could serve the first of them just now.
            LogDataLossError: its ledger is gone.
        """
        first = self._shape.first_at_or_after(start)
        if first > self._last_confirmed:
            return first, []
        ledger_id, first_entry_id = first
        if ledger_id == self._last_confirmed.ledger_id:
            end = self._last_confirmed.entry_id
        else:
            end = self._shape.last_entry_id(ledger_id)
        last = min(end, first_entry_id + entries_max - 1)
        writer = self._writer
        if writer is not None and writer.ledger_id == ledger_id:
            payloads = await writer.read(first_entry_id, last, bytes_max=bytes_max)
        else:
            reader = await self._reader(ledger_id)
            payloads = await reader.read(first_entry_id, last, bytes_max=bytes_max)
        return first, payloads

    async def _reader(self, ledger_id: int) -> LedgerReader:
        reader = self._readers.get(ledger_id)
        if reader is not None:
            self._readers.move_to_end(ledger_id)
            return reader
        try:
            reader = await self._client.open(ledger_id)
        except NoSuchLedgerError as error:
            raise LogDataLossError(f"{self.path}: ledger {ledger_id} is gone") from error
        self._readers[ledger_id] = reader
        while len(self._readers) > _READERS_MAX:
            self._readers.popitem(last=False)
        return reader

    # Closing -------------------------------------------------------------------------------------

    async def close(self) -> None:
        """Finish pending appends, close the ledger and note its end in the list.

        What cannot be done (bookies or metadata away) is left to the next owner's recovery; nothing
        acknowledged depends on it.
        """
        self._is_closing = True
        async with self._close_lock:
            if self._state is _State.CLOSED:
                return
            try:
                await self._wait_replaced()
                if self._state is _State.OPEN and self._writer is not None:
                    await self._close_writer(self._writer)
            finally:
                # Who has no time for the rest, and cancels it, still has every batch reported.
                self._state = _State.CLOSED
                self._fail_all(LogClosedError(f"{self.path}: the log is closed"))
            await self._drop_spare()

    async def _wait_replaced(self) -> None:
        """Let a change of ledgers come to its end, within bounds; none begins any more."""
        if self._replacing is None or self._replacing.done():
            return
        await asyncio.wait([self._replacing], timeout=self._config.repair_timeout_s)
        self._replacing.cancel()
        await asyncio.wait([self._replacing])  # it may hold a spare ledger until it has ended

    async def _close_writer(self, writer: LedgerWriter) -> None:
        try:
            closed = await writer.close()
            await self._list.update(self._list_with_closed(closed))
            if closed.last_entry_id < 0:
                await self._delete_ledger(writer.ledger_id)
        except LedgerError as error:
            log.warning("log_left_open", path=self.path, error=str(error))

    async def delete(self) -> None:
        """Close the log and remove it: the node first, then its ledgers.

        Raises:
            NotEmptyError: cursors are left below the node.
            MetadataError
        """
        await self.close()
        ledgers = self._list.ledgers
        await self._list.delete()
        for ledger in ledgers:
            await self._delete_ledger(ledger.ledger_id)
