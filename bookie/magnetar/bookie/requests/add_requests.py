"""Adds: checked, put into the storage, handed to the journal; and those that have to wait for room.

Fence check, storage and hand-over to the journal are one piece of synchronous code (rules 2.1 and
2.3). OK to an add comes only from the journal's report (contract C1).
"""

import asyncio
from enum import Enum, auto

from magnetar.bookie.errors import BadAddError, StorageFullError
from magnetar.bookie.journaling.journal_format import NewRecord, RecordType
from magnetar.bookie.journaling.journal_set import journal_number
from magnetar.bookie.metrics import BookieMetrics
from magnetar.bookie.requests.add_check import check_add
from magnetar.bookie.requests.fence_requests import FenceRequests
from magnetar.bookie.requests.fencing import FenceState, LedgerTable
from magnetar.bookie.requests.lac_requests import LacRequests
from magnetar.bookie.requests.replies import Connection, Replies
from magnetar.bookie.requests.request_batch import Batch, ReadBatches, journal_key
from magnetar.bookie.requests.write_gate import WriteGate
from magnetar.bookie.storage import LedgerStorage
from magnetar.ledger.errors import BookieProtocolError
from magnetar.ledger.ports import Clock
from magnetar.ledger.wire import MASTER_KEY_BYTES, Flag, Frame, Status, decode_block
from magnetar.ledger.wire_adds import ADD_HEAD, ADDS_MAX, COUNT_BYTES, count_of

_RECOVERY = int(Flag.RECOVERY)


class _Outcome(Enum):
    """What became of an add."""

    TAKEN = auto()
    """It is in the storage and in the batch for the journal, whose report answers it."""
    REFUSED = auto()
    """It is answered, or will be."""
    WAITS = auto()
    """There is no room for it now."""


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
        self._stalled: dict[Connection, float] = {}
        """Connections whose next add finds no room in the write cache, and until when it waits."""
        self._begun: dict[Connection, tuple[int, int]] = {}
        """Connections whose next frame is an ADDS that was obeyed in part: where in its body it
        goes on, and how many adds are left."""
        self._stall_timer: asyncio.TimerHandle | None = None

    def add(self, frame: Frame, batch: Batch) -> bool:
        """Obey an ADD; False if it has to wait for room in the write cache.

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
        """Obey an ADDS; False if the rest of it has to wait for room in the write cache.

        Each add in it is one for itself: what another is refused for does not concern it.

        Raises:
            BookieProtocolError: there are too many or none, or the body does not hold what it
                says; what came before was obeyed.
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
        """One add: the rules."""
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
        if self._ledgers.raise_last_add_confirmed(ledger, last_add_confirmed):
            self._lacs.on_raised(ledger)
        return _Outcome.TAKEN

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
        self._begun.pop(connection, None)

    def close(self) -> None:
        """No more timers."""
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
            # The connection stays among the stalled: adds behind this one waited as long already.
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


def _asked(frame: Frame, ledger_id: int, entry_id: int) -> Frame:
    """What the reply to one add is a reply to."""
    return frame._replace(ledger_id=ledger_id, entry_id=entry_id, body=b"")
