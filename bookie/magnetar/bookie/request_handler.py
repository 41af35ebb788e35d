"""What a bookie does with requests: the rules of adds, fences and reads. No sockets, no files.

Frames come in batches, one per network read. All adds of a batch go to the storage and, as one
batch, to the journal, in one piece of synchronous code: fence check, storage, hand-over (rules 2.1
and 2.3). Their replies are made when the journal reports the group, and leave in one piece per
connection. Reads that memory can answer are answered at once, others by a task each.

- OK to an add: only from the journal's report (contract C1).
- A fence, and what it makes of other requests, is visible only when it is durable (C2, D18, D20).
- NO_SUCH_ENTRY and NO_SUCH_LEDGER only when the storage is certain (C3).
"""

import asyncio
import json
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from typing import Protocol

import structlog

from magnetar.bookie.add_check import check_add
from magnetar.bookie.errors import (
    BadAddError,
    BookieServiceError,
    JournalFullError,
    StorageFullError,
)
from magnetar.bookie.fencing import FenceState, LedgerDescriptor, LedgerTable
from magnetar.bookie.journal import JournalBatch
from magnetar.bookie.journal_format import NewRecord, RecordType
from magnetar.bookie.metrics import BookieMetrics
from magnetar.bookie.storage import LedgerStorage
from magnetar.ledger.errors import BookieProtocolError
from magnetar.ledger.ports import Clock
from magnetar.ledger.wire import (
    HEADER,
    HEADER_BYTES,
    MAGIC,
    MASTER_KEY_BYTES,
    RESPONSE,
    VERSION,
    Flag,
    Frame,
    Op,
    Status,
    decode_block,
    decode_read_body,
    encode_block,
    encode_frame,
)

_log = structlog.get_logger(__name__)

_ADD_REPLY = Op.ADD | RESPONSE
_EMPTY_BODY_LENGTH = HEADER_BYTES - 4
# A read of a single small entry costs memory too, beside its bytes.
_READ_CHARGE_BYTES_MIN = 4096

_Read = Callable[[], Coroutine[None, None, None]]


class Connection(Protocol):
    """Where a request came from and its reply goes to."""

    reads_bytes: int
    """What its reads from disk have asked for and not got yet."""

    @property
    def is_congested(self) -> bool:
        """The client does not take its replies, or too many of its reads are under way."""
        ...

    def send(self, data: bytes) -> None:
        """Send reply frames; dropped if the connection is gone."""
        ...

    def try_again(self) -> None:
        """What kept `handle` from taking all frames may be over."""
        ...


class BatchContext:
    """Whom to tell what when a batch is durable."""

    __slots__ = ("adds", "connection", "fences", "keys")

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.adds: list[tuple[int, int, int]] = []
        """Request id, ledger id, entry id."""
        self.keys: list[LedgerDescriptor] = []
        self.fences: list[LedgerDescriptor] = []


Batch = JournalBatch[BatchContext]


class JournalQueue(Protocol):
    """The journal, as far as requests go: it reports each batch to `on_committed`, once."""

    def append(self, batch: Batch) -> None: ...


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
        version: str,
        free_bytes: Callable[[], int],
        full_wait_ms_max: int,
        read_reply_bytes_max: int,
        on_bug: Callable[[BaseException], None],
    ) -> None:
        self._storage = storage
        self._ledgers = ledgers
        self._clock = clock
        self._metrics = metrics
        self._bookie_id = bookie_id
        self._version = version
        self._free_bytes = free_bytes
        self._full_wait_s_max = full_wait_ms_max / 1000
        self._read_reply_bytes_max = read_reply_bytes_max
        self._on_bug = on_bug
        self._journal: JournalQueue | None = None
        self._outbox: dict[Connection, list[bytes]] = {}
        self._stalled: dict[Connection, float] = {}
        """Connections whose next add finds no room in the write cache, and until when it waits."""
        self._stall_timer: asyncio.TimerHandle | None = None
        self._reads: set[asyncio.Task[None]] = set()

    def use_journal(self, journal: JournalQueue) -> None:
        """Must be called before the first request."""
        self._journal = journal

    # Requests

    def handle(self, connection: Connection, frames: Sequence[Frame]) -> int:
        """Obey the frames in order; returns how many were taken.

        The rest must be offered again after `connection.try_again()`: there is no room for an add,
        or the connection is congested.

        Raises:
            BookieProtocolError: a frame that cannot be decoded; what came before it was obeyed.
        """
        batch: Batch = JournalBatch(BatchContext(connection))
        taken = 0
        try:
            for frame in frames:
                if connection.is_congested:
                    break
                if frame.op == Op.ADD and not frame.is_response:
                    if not self._add(frame, batch):
                        break
                else:
                    self._handle_other(frame, batch)
                    if connection in self._outbox:
                        self._send_replies()  # a large reply may congest the connection
                taken += 1
        finally:
            # Whatever happened: what is in the storage's memory now goes to the journal too.
            if batch.records:
                assert self._journal is not None
                self._journal.append(batch)
            self._send_replies()
        return taken

    def _handle_other(self, frame: Frame, batch: Batch) -> None:
        if frame.is_response:
            raise BookieProtocolError(f"a response (operation {frame.op}) was sent to a bookie")
        if frame.op == Op.READ:
            self._read(frame, batch)
        elif frame.op == Op.READ_LAC:
            self._read_lac(frame, batch)
        elif frame.op == Op.INFO:
            self._reply(batch.context.connection, frame, Status.OK, body=self._info())
        elif frame.op in (Op.WRITE_LAC, Op.LIST_ENTRIES, Op.AUTH):
            text = f"operation {Op(frame.op).name} is not built yet"
            self._reply_error(batch.context.connection, frame, Status.BAD_REQUEST, text)
        else:
            text = f"there is no operation {frame.op}"
            self._reply_error(batch.context.connection, frame, Status.BAD_REQUEST, text)

    def _info(self) -> bytes:
        facts = {
            "bookie_id": self._bookie_id,
            "version": self._version,
            "writable": True,
            "free_bytes": self._free_bytes(),
        }
        return json.dumps(facts).encode()

    # Adds

    def _add(self, frame: Frame, batch: Batch) -> bool:
        """Obey an ADD; False if it has to wait for room in the write cache."""
        context = batch.context
        connection = context.connection
        body = frame.body
        block = decode_block(body[MASTER_KEY_BYTES:])
        ledger_id = frame.ledger_id
        try:
            entry_ids, last_add_confirmed = check_add(ledger_id, frame.entry_id, block)
        except BadAddError as error:
            self._reply_error(connection, frame, error.status, str(error))
            return True
        ledger = self._ledgers.admit(ledger_id, body[:MASTER_KEY_BYTES])
        if ledger is None:
            self._reply_error(connection, frame, Status.UNAUTHORIZED, _wrong_key(ledger_id))
            return True
        if ledger.fence is not FenceState.OPEN and not frame.flags & Flag.RECOVERY:
            self._refuse_fenced(connection, frame, ledger)
            return True
        try:
            self._storage.add(ledger_id, block, entry_ids)
        except StorageFullError as error:
            return self._on_storage_full(connection, frame, error)
        if connection in self._stalled:
            del self._stalled[connection]
        self._ledgers.raise_last_add_confirmed(ledger, last_add_confirmed)
        if not ledger.is_key_journalled:
            self._journal_key(ledger, batch)
        count = len(block.lengths)
        batch.add(NewRecord(RecordType.ENTRY_BLOCK, ledger_id, block.data), count)
        context.adds.append((frame.request_id, ledger_id, frame.entry_id))
        metrics = self._metrics
        metrics.add_requests += 1
        metrics.add_entries += count
        metrics.add_bytes += len(block.data)
        return True

    @staticmethod
    def _journal_key(ledger: LedgerDescriptor, batch: Batch) -> None:
        batch.add(NewRecord(RecordType.MASTER_KEY, ledger.ledger_id, ledger.master_key))
        batch.context.keys.append(ledger)
        ledger.is_key_journalled = True

    def _refuse_fenced(
        self, connection: Connection, frame: Frame, ledger: LedgerDescriptor
    ) -> None:
        def refuse(error: JournalFullError | None) -> None:
            if error is None:
                text = f"ledger {ledger.ledger_id} is fenced"
                self._reply_error(connection, frame, Status.FENCED, text)
            else:
                self._reply_error(connection, frame, error.status, str(error))

        if ledger.fence is FenceState.PENDING:
            # A fence that a reply told of must not be lost: this reply waits for it too.
            ledger.wait_for_fence(refuse)
        elif ledger.fence is FenceState.DURABLE:
            refuse(None)
        else:
            text = f"ledger {ledger.ledger_id} is being fenced, but the fence could not be written"
            self._reply_error(connection, frame, Status.IO_ERROR, text)

    def _on_storage_full(
        self, connection: Connection, frame: Frame, error: StorageFullError
    ) -> bool:
        now_s = self._clock.monotonic_s()
        until_s = self._stalled.get(connection)
        if until_s is None:
            until_s = self._stalled[connection] = now_s + self._full_wait_s_max
            self._metrics.stalls += 1
        if now_s >= until_s:
            # The connection stays among the stalled: adds behind this one waited as long already.
            self._reply_error(connection, frame, error.status, str(error))
            return True
        if self._stall_timer is None:
            loop = asyncio.get_running_loop()
            self._stall_timer = loop.call_later(until_s - now_s, self._on_stall_timeout)
        return False

    def _on_stall_timeout(self) -> None:
        self._stall_timer = None
        for connection in list(self._stalled):
            connection.try_again()

    def on_flushed(self) -> None:
        """There is room in the write cache again."""
        now_s = self._clock.monotonic_s()
        for connection, until_s in list(self._stalled.items()):
            if until_s <= now_s:
                del self._stalled[connection]  # the next add may wait anew
            connection.try_again()

    def forget(self, connection: Connection) -> None:
        """The connection is closed."""
        self._stalled.pop(connection, None)
        self._outbox.pop(connection, None)

    def on_committed(self, batches: Sequence[Batch], error: JournalFullError | None) -> None:
        """The journal's report: these batches are durable, or failed for want of room."""
        pack, outbox = HEADER.pack, self._outbox
        for batch in batches:
            context = batch.context
            if error is not None:
                self._on_batch_failed(context, error)
            elif context.adds:
                outbox.setdefault(context.connection, []).extend(
                    [
                        pack(
                            _EMPTY_BODY_LENGTH,
                            MAGIC,
                            VERSION,
                            _ADD_REPLY,
                            0,
                            Status.OK,
                            request_id,
                            ledger_id,
                            entry_id,
                        )
                        for request_id, ledger_id, entry_id in context.adds
                    ]
                )
            for ledger in context.fences:
                ledger.on_fence_written(error)
        self._send_replies()

    def _on_batch_failed(self, context: BatchContext, error: JournalFullError) -> None:
        for request_id, ledger_id, entry_id in context.adds:
            frame = Frame(Op.ADD, False, 0, 0, request_id, ledger_id, entry_id, b"")
            self._reply_error(context.connection, frame, error.status, str(error))
        for ledger in context.keys:
            ledger.is_key_journalled = False

    # Fences

    def _after_fence(
        self, frame: Frame, key: bytes, batch: Batch, proceed: Callable[[], None]
    ) -> None:
        """Fence the ledger, and `proceed` when that is durable; else reply with the error."""
        connection, ledger_id = batch.context.connection, frame.ledger_id
        self._metrics.fence_requests += 1
        if len(key) != MASTER_KEY_BYTES:
            text = f"fencing ledger {ledger_id} needs its master key of {MASTER_KEY_BYTES} bytes"
            self._reply_error(connection, frame, Status.UNAUTHORIZED, text)
            return
        ledger = self._ledgers.admit(ledger_id, key)
        if ledger is None:
            self._reply_error(connection, frame, Status.UNAUTHORIZED, _wrong_key(ledger_id))
            return
        if ledger.request_fence():
            self._storage.put_state(ledger_id, ledger.state)
            if not ledger.is_key_journalled:
                self._journal_key(ledger, batch)
            batch.add(NewRecord(RecordType.FENCE, ledger_id, b""))
            batch.context.fences.append(ledger)
        if ledger.fence is FenceState.DURABLE:
            proceed()
            return

        def on_written(error: JournalFullError | None) -> None:
            if error is None:
                proceed()
            else:
                self._reply_error(connection, frame, error.status, str(error))

        ledger.wait_for_fence(on_written)

    # Reads

    def _read(self, frame: Frame, batch: Batch) -> None:
        last, bytes_max, key = decode_read_body(frame.body)
        connection, first = batch.context.connection, frame.entry_id
        if frame.ledger_id < 0 or not 0 <= first <= last:
            text = f"cannot read entries {first} to {last} of ledger {frame.ledger_id}"
            self._reply_error(connection, frame, Status.BAD_REQUEST, text)
            return
        self._metrics.read_requests += 1
        bytes_max = min(bytes_max, self._read_reply_bytes_max)
        proceed = partial(self._read_range, connection, frame, last, bytes_max)
        if frame.flags & Flag.FENCE:
            self._after_fence(frame, key, batch, proceed)
        else:
            proceed()

    def _read_range(self, connection: Connection, frame: Frame, last: int, bytes_max: int) -> None:
        ledger_id, first = frame.ledger_id, frame.entry_id
        try:
            packets = self._storage.read_now(ledger_id, first, last, bytes_max)
        except BookieServiceError as error:
            self._reply_error(connection, frame, error.status, str(error))
            return
        if packets is not None:
            self._reply_packets(connection, frame, packets)
            return

        async def read() -> None:
            found = await self._storage.read(ledger_id, first, last, bytes_max)
            self._reply_packets(connection, frame, found)

        self._start_read(connection, frame, bytes_max, read)

    def _read_lac(self, frame: Frame, batch: Batch) -> None:
        connection, ledger_id = batch.context.connection, frame.ledger_id
        if ledger_id < 0:
            text = f"ledger id {ledger_id} must be >= 0"
            self._reply_error(connection, frame, Status.BAD_REQUEST, text)
            return
        self._metrics.read_lac_requests += 1

        async def read() -> None:
            packet = await self._storage.last_packet(ledger_id) or b""
            body = len(packet).to_bytes(4, "big") + packet + bytes(4)
            self._reply(connection, frame, Status.OK, body=body)

        proceed = partial(self._start_read, connection, frame, 0, read)
        if frame.flags & Flag.FENCE:
            self._after_fence(frame, frame.body, batch, proceed)
        elif self._storage.state(ledger_id) is None:
            text = f"ledger {ledger_id} is not known here"
            self._reply_error(connection, frame, Status.NO_SUCH_LEDGER, text)
        else:
            proceed()

    def _start_read(
        self, connection: Connection, frame: Frame, bytes_max: int, read: _Read
    ) -> None:
        charge = max(bytes_max, _READ_CHARGE_BYTES_MIN)
        connection.reads_bytes += charge
        self._metrics.reads_pending += 1
        task = asyncio.get_running_loop().create_task(
            self._finish_read(connection, frame, charge, read), name="bookie-read"
        )
        self._reads.add(task)
        task.add_done_callback(self._on_read_done)

    async def _finish_read(
        self, connection: Connection, frame: Frame, charge: int, read: _Read
    ) -> None:
        try:
            await read()
        except BookieServiceError as error:
            self._reply_error(connection, frame, error.status, str(error))
        finally:
            self._metrics.reads_pending -= 1
            connection.reads_bytes -= charge
        self._send_replies()
        connection.try_again()

    def _on_read_done(self, task: asyncio.Task[None]) -> None:
        self._reads.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._on_bug(error)

    async def close(self) -> None:
        """Give up the reads under way."""
        if self._stall_timer is not None:
            self._stall_timer.cancel()
        reads = list(self._reads)
        for task in reads:
            task.cancel()
        await asyncio.gather(*reads, return_exceptions=True)

    # Replies

    def _reply_packets(
        self, connection: Connection, frame: Frame, packets: Sequence[bytes]
    ) -> None:
        data = encode_block(packets).data
        self._metrics.read_entries += len(packets)
        self._metrics.read_bytes += len(data)
        last_add_confirmed = self._ledgers.last_add_confirmed(frame.ledger_id)
        body = last_add_confirmed.to_bytes(8, "big", signed=True) + data
        self._reply(connection, frame, Status.OK, body=body)

    def _reply_error(self, connection: Connection, frame: Frame, status: Status, text: str) -> None:
        self._metrics.count_failure(status)
        self._reply(connection, frame, status, body=text.encode())

    def _reply(
        self, connection: Connection, frame: Frame, status: Status, *, body: bytes = b""
    ) -> None:
        is_read = frame.op in (Op.READ, Op.READ_LAC)
        is_fenced = is_read and self._ledgers.is_durably_fenced(frame.ledger_id)
        reply = encode_frame(
            frame.op | RESPONSE,
            request_id=frame.request_id,
            ledger_id=frame.ledger_id,
            entry_id=frame.entry_id,
            flags=Flag.FENCED if is_fenced else 0,
            status=status,
            body=body,
        )
        self._outbox.setdefault(connection, []).append(reply)

    def _send_replies(self) -> None:
        """One write per connection."""
        if not self._outbox:
            return
        outbox, self._outbox = self._outbox, {}
        for connection, replies in outbox.items():
            connection.send(replies[0] if len(replies) == 1 else b"".join(replies))


def _wrong_key(ledger_id: int) -> str:
    return f"this is not the master key of ledger {ledger_id}"
