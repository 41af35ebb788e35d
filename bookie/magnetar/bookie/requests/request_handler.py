"""The request handler of a bookie: frames in, replies out. No sockets, no files.

Frames come in batches, one per network read. All records of a batch go to the journal as one batch,
in one piece of synchronous code with the checks and the storage. (With several journals, the ledger
id chooses the journal: the records of a ledger are in one of them, in order.) The replies are made
when the journal reports the group, and leave with one write per connection.

The rules of adds are here; the others are in `fence_requests.py`, `read_requests.py` and
`lac_requests.py`.

An add is checked, put into the storage and handed to the journal, or has to wait for room. Fence
check, storage and hand-over are one piece of synchronous code (rules 2.1 and 2.3). OK to an add
comes only from the journal's report (contract C1).
"""

import asyncio
import json
from collections.abc import Callable, Sequence
from enum import Enum, auto

from magnetar.bookie.entry_logs.packet_run import check_add
from magnetar.bookie.errors import BadAddError, JournalFullError, StorageFullError
from magnetar.bookie.journaling.journal import journal_number
from magnetar.bookie.journaling.journal_format import NewRecord, RecordType
from magnetar.bookie.metrics import BookieMetrics
from magnetar.bookie.requests.fence_requests import FenceRequests
from magnetar.bookie.requests.fencing import FenceState, LedgerTable
from magnetar.bookie.requests.lac_requests import LacRequests
from magnetar.bookie.requests.read_requests import ReadRequests
from magnetar.bookie.requests.replies import (
    Batch,
    BatchContext,
    Connection,
    JournalQueue,
    ReadBatches,
    Replies,
    journal_key,
)
from magnetar.bookie.requests.write_gate import WriteGate
from magnetar.bookie.settings import BookieSettings
from magnetar.bookie.storage import LedgerStorage
from magnetar.ledger.bookie_facts import DirectoryFacts
from magnetar.ledger.errors import BookieProtocolError, WrongBookieError
from magnetar.ledger.hello import READS_TAKE_KEYS, BookieIdentity, decode_identity
from magnetar.ledger.ports import Clock
from magnetar.ledger.wire import MASTER_KEY_BYTES, Flag, Frame, Op, Status, decode_block
from magnetar.ledger.wire_adds import ADD_HEAD, ADDS_MAX, COUNT_BYTES, count_of

_RECOVERY = int(Flag.RECOVERY)


class RequestHandler:
    """Handler of the requests of all connections of one bookie."""

    def __init__(
        self,
        storage: LedgerStorage,
        ledgers: LedgerTable,
        settings: BookieSettings,
        *,
        clock: Clock,
        metrics: BookieMetrics,
        bookie_id: str,
        instance_id: str = "",
        version: str,
        free_bytes: Callable[[], int],
        on_bug: Callable[[BaseException], None],
        gate: WriteGate | None = None,
        directories: Callable[[], Sequence[DirectoryFacts]] = tuple,
    ) -> None:
        """`directories` returns the result of the last check of the directories."""
        self._directories = directories
        self._identity = BookieIdentity(bookie_id, instance_id)
        self._version = version
        self._free_bytes = free_bytes
        self._gate = gate = gate if gate is not None else WriteGate()
        self._journals: tuple[JournalQueue, ...] = ()
        self._replies = replies = Replies(ledgers, metrics)
        fences = FenceRequests(storage, ledgers, replies, metrics)
        self._reads = ReadRequests(
            storage,
            ledgers,
            fences,
            replies,
            metrics=metrics,
            reply_bytes_max=settings.read_reply_bytes_max,
            on_bug=on_bug,
        )
        self._lacs = LacRequests(
            storage,
            ledgers,
            fences,
            self._reads,
            replies,
            clock=clock,
            metrics=metrics,
            settings=settings,
        )
        self._adds = AddRequests(
            storage,
            ledgers,
            fences,
            self._lacs,
            replies,
            clock=clock,
            metrics=metrics,
            full_wait_s_max=settings.write_cache_full_wait_ms_max / 1000,
            gate=gate,
        )

    def use_journal(self, *journals: JournalQueue) -> None:
        """Set the journals; call it before the first request."""
        assert journals
        self._journals = journals

    def handle(self, connection: Connection, frames: Sequence[Frame]) -> int:
        """Handle frames in order; return how many were handled.

        Offer the rest again after `connection.try_again()`: an add found no room, or the connection
        is congested.

        Raises:
            WrongBookieError: the client means another bookie; it has the reply, and must be cut.
            BookieProtocolError: a frame cannot be decoded; the frames before it were handled.
        """
        journals, adds, replies = len(self._journals), self._adds, self._replies
        batches = ReadBatches(connection)
        taken = 0
        try:
            for frame in frames:
                if connection.is_congested:
                    break
                if frame.op == Op.ADDS and not frame.is_response:
                    if not adds.add_shared(frame, batches, journals):
                        break
                    taken += 1
                    continue
                batch = batches[journal_number(frame.ledger_id, journals)]
                if frame.op == Op.ADD and not frame.is_response:
                    if not adds.add(frame, batch):
                        break
                else:
                    self._handle_other(frame, batch)
                    replies.send_much(connection)  # it may congest the connection
                taken += 1
        finally:
            # Even after an error: records of data in the storage's memory must go to the journal.
            for number, batch in batches.items():
                if batch.records:
                    self._journals[number].append(batch)
            replies.send()
        return taken

    def _handle_other(self, frame: Frame, batch: Batch) -> None:
        connection = batch.context.connection
        if frame.is_response:
            raise BookieProtocolError(f"a response (operation {frame.op}) was sent to a bookie")
        if frame.op == Op.READ:
            self._reads.read(frame, batch)
        elif frame.op == Op.READ_LAC:
            self._lacs.read_lac(frame, batch)
        elif frame.op == Op.WRITE_LAC:
            self._lacs.write_lac(frame, batch)
        elif frame.op == Op.LIST_ENTRIES:
            self._reads.list_entries(frame, connection)
        elif frame.op == Op.INFO:
            self._greet(frame, connection)
        elif frame.op == Op.AUTH:
            text = "this bookie has no shared secret: set shared_secret_file"
            self._replies.put_error(connection, frame, Status.BAD_REQUEST, text)
        else:
            text = f"there is no operation {frame.op}"
            self._replies.put_error(connection, frame, Status.BAD_REQUEST, text)

    def _greet(self, frame: Frame, connection: Connection) -> None:
        """Answer an INFO; with an identity in its body it is a hello.

        Raises:
            WrongBookieError: the frame is a hello to another bookie.
        """
        meant = decode_identity(frame.body) if frame.body else self._identity
        if meant.is_other_than(self._identity):
            text = f"expected {meant}, but {self._identity} answered"
            self._replies.put_error(connection, frame, Status.WRONG_BOOKIE, text)
            raise WrongBookieError(text)
        # A hello, sent on every connection, only checks who answers: its reply lists no
        # directories.
        directories = () if frame.body else self._directories()
        self._replies.put(connection, frame, self._info(directories))

    def _info(self, directories: Sequence[DirectoryFacts]) -> bytes:
        facts: dict[str, object] = {
            **self._identity._asdict(),
            "version": self._version,
            READS_TAKE_KEYS: True,
            "writable": self._gate.is_writable,
            "read_only_reasons": [reason.value for reason in self._gate.reasons],
            "free_bytes": self._free_bytes(),
        }
        if directories:
            facts["directories"] = [each.model_dump() for each in directories]
        return json.dumps(facts).encode()

    def on_flushed(self) -> None:
        """Retry the stalled adds: the write cache has room again."""
        self._adds.on_flushed()

    def on_committed(self, batches: Sequence[Batch], error: JournalFullError | None) -> None:
        """Answer the batches that the journal reports as durable, or as failed because the disk is
        full."""
        replies = self._replies
        for batch in batches:
            context = batch.context
            if error is not None:
                self._on_batch_failed(context, error)
            else:
                if context.adds:
                    replies.put_empty(context.connection, Op.ADD, context.adds)
                for request_id, ids in context.shared_adds.items():
                    replies.put_shared(context.connection, request_id, ids)
                if context.lacs:
                    replies.put_empty(context.connection, Op.WRITE_LAC, context.lacs)
            for ledger in context.keys:
                ledger.on_key_written(error)
            for ledger in context.fences:
                ledger.on_fence_written(error)
        replies.send()

    def _on_batch_failed(self, context: BatchContext, error: JournalFullError) -> None:
        asked = [(Op.ADD, *each) for each in context.adds]
        asked += [(Op.WRITE_LAC, *each) for each in context.lacs]
        for request_id, ids in context.shared_adds.items():
            pairs = zip(ids[::2], ids[1::2], strict=True)
            asked += [(Op.ADDS, request_id, *pair) for pair in pairs]
        for op, request_id, ledger_id, entry_id in asked:
            frame = Frame(op, False, 0, 0, request_id, ledger_id, entry_id, b"")
            self._replies.put_error(context.connection, frame, error.status, str(error))

    def forget(self, connection: Connection) -> None:
        """Forget a closed connection."""
        self._adds.forget(connection)
        self._lacs.forget(connection)
        self._replies.forget(connection)

    async def close(self) -> None:
        """Cancel the reads in progress and all timers."""
        self._adds.close()
        self._lacs.close()
        await self._reads.close()


class AddRequests:
    """The ADD and ADDS requests of all connections."""

    def __init__(
        self,
        storage: LedgerStorage,
        ledgers: LedgerTable,
        fences: FenceRequests,
        lacs: LacRequests,
        replies: Replies,
        *,
        clock: Clock,
        metrics: BookieMetrics,
        full_wait_s_max: float,
        gate: WriteGate,
    ) -> None:
        self._storage = storage
        self._ledgers = ledgers
        self._fences = fences
        self._lacs = lacs
        self._replies = replies
        self._clock = clock
        self._metrics = metrics
        self._full_wait_s_max = full_wait_s_max
        self._gate = gate
        self._polls = lacs.polls
        self._stalled: dict[Connection, float] = {}
        """Connections whose next add finds no room in the write cache, with the end of their
        wait."""
        self._begun: dict[Connection, tuple[int, int]] = {}
        """Connections whose next frame is a partly handled ADDS: the offset in its body, and the
        adds left."""
        self._stall_timer: asyncio.TimerHandle | None = None

    def add(self, frame: Frame, batch: Batch) -> bool:
        """Handle an ADD; return False if it has to wait for room in the write cache.

        Raises:
            BookieProtocolError: the body is no key and entry block.
        """
        body, ledger_id, entry_id = frame.body, frame.ledger_id, frame.entry_id
        key, data = body[:MASTER_KEY_BYTES], body[MASTER_KEY_BYTES:]
        outcome = self._add(frame, ledger_id, entry_id, key, data, batch)
        if outcome is _Outcome.TAKEN:
            batch.context.adds.append((frame.request_id, ledger_id, entry_id))
        return outcome is not _Outcome.WAITS

    def add_shared(self, frame: Frame, batches: ReadBatches, journals: int) -> bool:
        """Handle an ADDS; return False if the rest of it has to wait for room in the write cache.

        Each add in it stands alone: the refusal of one does not affect the others.

        Raises:
            BookieProtocolError: the number of adds is 0 or too high, or the body does not match it;
                the adds before the error were handled.
        """
        body, request_id = frame.body, frame.request_id
        count = count_of(body)
        if not 0 < count <= ADDS_MAX:
            raise BookieProtocolError(f"a frame of {count} adds; it may have 1 to {ADDS_MAX}")
        at, left = self._begun.pop(batches.connection, (COUNT_BYTES, count))
        end = len(body)
        while left:
            start = at + ADD_HEAD.size
            if start > end:
                raise BookieProtocolError(f"a frame of adds ends where {left} are missing")
            ledger_id, entry_id, size, key = ADD_HEAD.unpack_from(body, at)
            stop = start + size
            if stop > end:
                raise BookieProtocolError(f"an add of {size} bytes goes beyond its frame")
            batch = batches[journal_number(ledger_id, journals)]
            outcome = self._add(frame, ledger_id, entry_id, key, body[start:stop], batch)
            if outcome is _Outcome.TAKEN:
                batch.context.shared_adds[request_id] += (ledger_id, entry_id)
            elif outcome is _Outcome.WAITS:
                self._begun[batches.connection] = at, left
                return False
            at, left = stop, left - 1
        if at != end:
            raise BookieProtocolError(f"{end - at} bytes follow the last add of a frame")
        return True

    def _add(
        self, frame: Frame, ledger_id: int, entry_id: int, key: bytes, data: bytes, batch: Batch
    ) -> "_Outcome":
        """Handle one add: apply the rules."""
        connection = batch.context.connection
        block = decode_block(data)
        try:
            entry_ids, last_add_confirmed = check_add(ledger_id, entry_id, block)
        except BadAddError as error:
            asked = _asked(frame, ledger_id, entry_id)
            self._replies.put_error(connection, asked, error.status, str(error))
            return _Outcome.REFUSED
        is_recovery = frame.flags & _RECOVERY
        if not self._gate.is_wide_open:
            text = self._gate.refusal(ledger_id, is_recovery=bool(is_recovery))
            if text is not None:
                self._metrics.disks.refused_adds += 1
                asked = _asked(frame, ledger_id, entry_id)
                self._replies.put_error(connection, asked, Status.READ_ONLY, text)
                return _Outcome.REFUSED
        if not is_recovery and self._ledgers.was_deleted(ledger_id):
            self._fences.refuse_deleted(connection, _asked(frame, ledger_id, entry_id))
            return _Outcome.REFUSED
        ledger = self._ledgers.admit(ledger_id, key)
        if ledger is None:
            self._fences.refuse_key(connection, _asked(frame, ledger_id, entry_id))
            return _Outcome.REFUSED
        if ledger.fence is not FenceState.OPEN and not is_recovery:
            self._fences.refuse(connection, _asked(frame, ledger_id, entry_id), ledger)
            return _Outcome.REFUSED
        try:
            self._storage.add(ledger_id, block, entry_ids)
        except StorageFullError as error:
            return self._on_storage_full(connection, _asked(frame, ledger_id, entry_id), error)
        if self._stalled and connection in self._stalled:
            del self._stalled[connection]
        if not ledger.is_key_journalled:
            journal_key(ledger, batch)
        count = len(block.lengths)
        batch.add(NewRecord(RecordType.ENTRY_BLOCK, ledger_id, data), count)
        metrics = self._metrics
        metrics.add_requests += 1
        if is_recovery:
            metrics.recovery_add_requests += 1
        metrics.add_entries += count
        metrics.add_bytes += len(data)
        if self._ledgers.raise_last_add_confirmed(ledger, last_add_confirmed) and self._polls.count:
            self._lacs.on_raised(ledger)
        return _Outcome.TAKEN

    def on_flushed(self) -> None:
        """Retry the stalled adds: the write cache has room again."""
        now_s = self._clock.monotonic_s()
        for connection, until_s in list(self._stalled.items()):
            if until_s <= now_s:
                del self._stalled[connection]  # its next add may wait anew
            connection.try_again()

    def forget(self, connection: Connection) -> None:
        """Forget a closed connection."""
        self._stalled.pop(connection, None)
        self._begun.pop(connection, None)

    def close(self) -> None:
        """Cancel the timer."""
        if self._stall_timer is not None:
            self._stall_timer.cancel()

    def _on_storage_full(
        self, connection: Connection, frame: Frame, error: StorageFullError
    ) -> "_Outcome":
        now_s = self._clock.monotonic_s()
        until_s = self._stalled.get(connection)
        if until_s is None:
            until_s = self._stalled[connection] = now_s + self._full_wait_s_max
            self._metrics.stalls += 1
        if now_s >= until_s:
            # The connection stays stalled: the adds behind this one have waited as long.
            self._replies.put_error(connection, frame, error.status, str(error))
            return _Outcome.REFUSED
        if self._stall_timer is None:
            loop = asyncio.get_running_loop()
            self._stall_timer = loop.call_later(until_s - now_s, self._on_stall_timeout)
        return _Outcome.WAITS

    def _on_stall_timeout(self) -> None:
        self._stall_timer = None
        for connection in list(self._stalled):
            connection.try_again()


class _Outcome(Enum):
    """Outcome of handling one add."""

    TAKEN = auto()
    """The add is in the storage and in the batch; the journal's report answers it."""
    REFUSED = auto()
    """The add has its reply, or will get it when a fence is durable."""
    WAITS = auto()
    """The write cache has no room for the add now."""


def _asked(frame: Frame, ledger_id: int, entry_id: int) -> Frame:
    """Return a frame without body that names one add, for its reply."""
    return frame._replace(ledger_id=ledger_id, entry_id=entry_id, body=b"")
