"""What a bookie does with requests: frames in, replies out. No sockets, no files.

Frames come in batches, one per network read. What a batch leaves for a journal goes there as one
batch of records, in one piece of synchronous code with the checks and the storage. (With several
journals a ledger's id chooses its journal: its records are in one of them, in order.) Its replies
are made when the journal reports the group, and leave in one piece per connection.

The rules are in `add_requests.py`, `fence_requests.py`, `read_requests.py` and `lac_requests.py`.
"""

import json
from collections.abc import Callable, Sequence

from magnetar.bookie.errors import JournalFullError
from magnetar.bookie.journaling.journal_set import journal_number
from magnetar.bookie.metrics import BookieMetrics
from magnetar.bookie.requests.add_requests import AddRequests
from magnetar.bookie.requests.fence_requests import FenceRequests
from magnetar.bookie.requests.fencing import LedgerTable
from magnetar.bookie.requests.lac_requests import LacRequests
from magnetar.bookie.requests.long_polls import LongPollLimits
from magnetar.bookie.requests.read_requests import ReadRequests
from magnetar.bookie.requests.replies import Connection, Replies
from magnetar.bookie.requests.request_batch import (
    Batch,
    BatchContext,
    JournalQueue,
    ReadBatches,
)
from magnetar.bookie.requests.write_gate import WriteGate
from magnetar.bookie.storage import LedgerStorage
from magnetar.ledger.errors import BookieProtocolError, WrongBookieError
from magnetar.ledger.hello import READS_TAKE_KEYS, BookieIdentity, decode_identity
from magnetar.ledger.ports import Clock
from magnetar.ledger.wire import Frame, Op, Status

_DEFAULT_LONG_POLL_LIMITS = LongPollLimits()


class RequestHandler:
    """The requests of all connections of one bookie."""

    def __init__(
        self,
        storage: LedgerStorage,
        ledgers: LedgerTable,
        *,
        clock: Clock,
        metrics: BookieMetrics,
        bookie_id: str,
        instance_id: str = "",
        version: str,
        free_bytes: Callable[[], int],
        full_wait_ms_max: int,
        read_reply_bytes_max: int,
        on_bug: Callable[[BaseException], None],
        long_poll_limits: LongPollLimits = _DEFAULT_LONG_POLL_LIMITS,
        gate: WriteGate | None = None,
    ) -> None:
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
            reply_bytes_max=read_reply_bytes_max,
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
            limits=long_poll_limits,
            reply_bytes_max=read_reply_bytes_max,
        )
        self._adds = AddRequests(
            storage,
            ledgers,
            fences,
            self._lacs,
            replies,
            clock=clock,
            metrics=metrics,
            full_wait_s_max=full_wait_ms_max / 1000,
            gate=gate,
        )

    def use_journal(self, *journals: JournalQueue) -> None:
        """Must be called before the first request."""
        assert journals
        self._journals = journals

    def handle(self, connection: Connection, frames: Sequence[Frame]) -> int:
        """Obey the frames in order; returns how many were taken.

        The rest must be offered again after `connection.try_again()`: there is no room for an add,
        or the connection is congested.

        Raises:
            WrongBookieError: the client means another bookie: it was told, and is to be cut off.
            BookieProtocolError: a frame that cannot be decoded; what came before it was obeyed.
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
            # Whatever happened: what is in the storage's memory now goes to the journal too.
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
        """
        Raises:
            WrongBookieError: the frame is a hello, to another bookie.
        """
        meant = decode_identity(frame.body) if frame.body else self._identity
        if meant.is_other_than(self._identity):
            text = f"{meant} was meant, {self._identity} answers"
            self._replies.put_error(connection, frame, Status.WRONG_BOOKIE, text)
            raise WrongBookieError(text)
        self._replies.put(connection, frame, self._info())

    def _info(self) -> bytes:
        facts = {
            **self._identity._asdict(),
            "version": self._version,
            READS_TAKE_KEYS: True,
            "writable": self._gate.is_writable,
            "read_only_reasons": [reason.value for reason in self._gate.reasons],
            "free_bytes": self._free_bytes(),
        }
        return json.dumps(facts).encode()

    def on_flushed(self) -> None:
        """There is room in the write cache again."""
        self._adds.on_flushed()

    def on_committed(self, batches: Sequence[Batch], error: JournalFullError | None) -> None:
        """The journal's report: these batches are durable, or failed for want of room."""
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
        """The connection is closed."""
        self._adds.forget(connection)
        self._lacs.forget(connection)
        self._replies.forget(connection)

    async def close(self) -> None:
        """Give up the reads under way; no timer runs any more."""
        self._adds.close()
        self._lacs.close()
        await self._reads.close()
