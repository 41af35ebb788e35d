"""Reads of entries and lists of entry ids.

Memory answers at once if it can; every other request gets a task. NO_SUCH_ENTRY and NO_SUCH_LEDGER
are sent only when the storage is certain (contract C3). For a ledger in limbo it never is: entries
that are found are served, others get UNKNOWN_LEDGER_STATE.
"""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from functools import partial

from magnetar.bookie.errors import (
    BookieServiceError,
    LedgerInLimboError,
    NoSuchEntryInStorageError,
    NoSuchLedgerInStorageError,
)
from magnetar.bookie.metrics import BookieMetrics
from magnetar.bookie.requests.fence_requests import FenceRequests
from magnetar.bookie.requests.fencing import LedgerTable
from magnetar.bookie.requests.replies import Batch, Connection, Replies, read_charge
from magnetar.bookie.storage import LedgerStorage
from magnetar.ledger.wire import Flag, Frame, Status, decode_read_body
from magnetar.ledger.wire_bodies import (
    ENTRY_LIST_BYTES_MAX,
    decode_list_entries,
    encode_entry_list,
)

_FENCE = int(Flag.FENCE)

Read = Callable[[], Coroutine[None, None, None]]


class ReadRequests:
    """The READ and LIST_ENTRIES requests of all connections."""

    def __init__(
        self,
        storage: LedgerStorage,
        ledgers: LedgerTable,
        fences: FenceRequests,
        replies: Replies,
        *,
        metrics: BookieMetrics,
        reply_bytes_max: int,
        on_bug: Callable[[BaseException], None],
    ) -> None:
        self._storage = storage
        self._ledgers = ledgers
        self._fences = fences
        self._replies = replies
        self._metrics = metrics
        self._reply_bytes_max = reply_bytes_max
        self._on_bug = on_bug
        self._tasks: dict[asyncio.Task[None], None] = {}

    def read(self, frame: Frame, batch: Batch) -> None:
        """Handle a READ.

        Raises:
            BookieProtocolError: the body cannot be decoded.
        """
        last, bytes_max, key = decode_read_body(frame.body)
        connection, first = batch.context.connection, frame.entry_id
        if frame.ledger_id < 0 or not 0 <= first <= last:
            text = f"cannot read entries {first} to {last} of ledger {frame.ledger_id}"
            self._replies.put_error(connection, frame, Status.BAD_REQUEST, text)
            return
        self._metrics.read_requests += 1
        bytes_max = min(bytes_max, self._reply_bytes_max)
        if frame.flags & _FENCE:
            proceed = partial(self._read_range, connection, frame, last, bytes_max)
            self._fences.after_fence(frame, key, batch, bytes_max, proceed)
        elif self._fences.admit_read(connection, frame, key):
            self._read_range(connection, frame, last, bytes_max)

    def list_entries(self, frame: Frame, connection: Connection) -> None:
        """Handle a LIST_ENTRIES.

        Raises:
            BookieProtocolError: the body cannot be decoded.
        """
        bytes_max, key = decode_list_entries(frame.body)
        ledger_id, first = frame.ledger_id, frame.entry_id
        if ledger_id < 0 or first < 0:
            text = f"cannot list the entries of ledger {ledger_id} from {first} on"
            self._replies.put_error(connection, frame, Status.BAD_REQUEST, text)
            return
        self._metrics.list_requests += 1
        if not self._fences.admit_read(connection, frame, key):
            return
        if self._ledgers.is_in_limbo(ledger_id):
            # A list also claims which entries are absent.
            self.put_failure(connection, frame, LedgerInLimboError(ledger_id))
            return
        bytes_max = max(1, min(bytes_max, ENTRY_LIST_BYTES_MAX))

        async def read() -> None:
            page = await self._storage.list_entries(ledger_id, first, bytes_max)
            self._replies.put(connection, frame, encode_entry_list(page))

        self.start(connection, frame, bytes_max, read)

    def start(self, connection: Connection, frame: Frame, bytes_max: int, read: Read) -> None:
        """Run `read`, which replies, in a task; its errors become the reply."""
        charge = read_charge(bytes_max)
        connection.reads_bytes += charge
        self._metrics.reads_pending += 1
        task = asyncio.get_running_loop().create_task(
            self._finish(connection, frame, charge, read), name="bookie-read"
        )
        self._tasks[task] = None
        task.add_done_callback(self._on_done)

    async def close(self) -> None:
        """Cancel the reads in progress."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _read_range(self, connection: Connection, frame: Frame, last: int, bytes_max: int) -> None:
        ledger_id, first = frame.ledger_id, frame.entry_id
        # Checked before the read, too: a read that misses may end after the ledger left limbo.
        was_in_limbo = self._ledgers.is_in_limbo(ledger_id)
        try:
            packets = self._storage.read_now(ledger_id, first, last, bytes_max)
        except BookieServiceError as error:
            self.put_failure(connection, frame, self._in_limbo(ledger_id, was_in_limbo, error))
            return
        if packets is not None:
            self._reply_packets(connection, frame, packets)
            return

        async def read() -> None:
            try:
                found = await self._storage.read(ledger_id, first, last, bytes_max)
            except BookieServiceError as error:
                raise self._in_limbo(ledger_id, was_in_limbo, error) from error
            self._reply_packets(connection, frame, found)

        self.start(connection, frame, bytes_max, read)

    def put_failure(self, connection: Connection, frame: Frame, error: BookieServiceError) -> None:
        """Reply with an error."""
        self._replies.put_error(connection, frame, error.status, str(error))

    def _in_limbo(
        self, ledger_id: int, was_in_limbo: bool, error: BookieServiceError
    ) -> BookieServiceError:
        """Return the error to reply with: in a ledger in limbo, no entry is known to be absent."""
        is_negative = isinstance(error, NoSuchEntryInStorageError | NoSuchLedgerInStorageError)
        if is_negative and (was_in_limbo or self._ledgers.is_in_limbo(ledger_id)):
            return LedgerInLimboError(ledger_id)
        return error

    async def _finish(self, connection: Connection, frame: Frame, charge: int, read: Read) -> None:
        try:
            await read()
        except BookieServiceError as error:
            self.put_failure(connection, frame, error)
        finally:
            self._metrics.reads_pending -= 1
            connection.reads_bytes -= charge
        self._replies.send_much(connection)
        self._replies.send_soon()
        connection.try_again()

    def _on_done(self, task: asyncio.Task[None]) -> None:
        self._tasks.pop(task, None)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._on_bug(error)

    def _reply_packets(
        self, connection: Connection, frame: Frame, packets: Sequence[bytes]
    ) -> None:
        last_add_confirmed = self._ledgers.last_add_confirmed(frame.ledger_id)
        size_bytes = self._replies.put_packets(connection, frame, packets, last_add_confirmed)
        self._metrics.read_entries += len(packets)
        self._metrics.read_bytes += size_bytes
