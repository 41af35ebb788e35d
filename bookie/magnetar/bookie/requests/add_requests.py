"""Adds: checked, put into the storage, handed to the journal; and those that have to wait for room.

Fence check, storage and hand-over to the journal are one piece of synchronous code (rules 2.1 and
2.3). OK to an add comes only from the journal's report (contract C1).
"""

import asyncio

from magnetar.bookie.errors import BadAddError, StorageFullError
from magnetar.bookie.journaling.journal_format import NewRecord, RecordType
from magnetar.bookie.metrics import BookieMetrics
from magnetar.bookie.requests.add_check import check_add
from magnetar.bookie.requests.fence_requests import FenceRequests
from magnetar.bookie.requests.fencing import FenceState, LedgerTable
from magnetar.bookie.requests.lac_requests import LacRequests
from magnetar.bookie.requests.replies import Connection, Replies
from magnetar.bookie.requests.request_batch import Batch, journal_key
from magnetar.bookie.requests.write_gate import WriteGate
from magnetar.bookie.storage import LedgerStorage
from magnetar.ledger.ports import Clock
from magnetar.ledger.wire import MASTER_KEY_BYTES, Flag, Frame, Status, decode_block

_RECOVERY = int(Flag.RECOVERY)


class AddRequests:
    """The ADD requests of all connections."""

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
        self._stall_timer: asyncio.TimerHandle | None = None

    def add(self, frame: Frame, batch: Batch) -> bool:
        """Obey an ADD; False if it has to wait for room in the write cache.

        Raises:
            BookieProtocolError: the body is no key and entry block.
        """
        context = batch.context
        connection = context.connection
        body = frame.body
        block = decode_block(body[MASTER_KEY_BYTES:])
        ledger_id = frame.ledger_id
        try:
            entry_ids, last_add_confirmed = check_add(ledger_id, frame.entry_id, block)
        except BadAddError as error:
            self._replies.put_error(connection, frame, error.status, str(error))
            return True
        if not self._gate.is_wide_open and self._is_refused(frame, connection):
            return True
        is_recovery = frame.flags & _RECOVERY
        if not is_recovery and self._ledgers.was_deleted(ledger_id):
            self._fences.refuse_deleted(connection, frame)
            return True
        ledger = self._fences.admit(connection, frame, body[:MASTER_KEY_BYTES])
        if ledger is None:
            return True
        if ledger.fence is not FenceState.OPEN and not is_recovery:
            self._fences.refuse(connection, frame, ledger)
            return True
        try:
            self._storage.add(ledger_id, block, entry_ids)
        except StorageFullError as error:
            return self._on_storage_full(connection, frame, error)
        if connection in self._stalled:
            del self._stalled[connection]
        journal_key(ledger, batch)
        count = len(block.lengths)
        batch.add(NewRecord(RecordType.ENTRY_BLOCK, ledger_id, block.data), count)
        context.adds.append((frame.request_id, ledger_id, frame.entry_id))
        metrics = self._metrics
        metrics.add_requests += 1
        if is_recovery:
            metrics.recovery_add_requests += 1
        metrics.add_entries += count
        metrics.add_bytes += len(block.data)
        if self._ledgers.raise_last_add_confirmed(ledger, last_add_confirmed):
            self._lacs.on_raised(ledger)
        return True

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

    def close(self) -> None:
        """No more timers."""
        if self._stall_timer is not None:
            self._stall_timer.cancel()

    def _is_refused(self, frame: Frame, connection: Connection) -> bool:
        """Reply READ_ONLY if the add may not be stored now."""
        is_recovery = bool(frame.flags & _RECOVERY)
        text = self._gate.refusal(frame.ledger_id, is_recovery=is_recovery)
        if text is None:
            return False
        self._metrics.disks.refused_adds += 1
        self._replies.put_error(connection, frame, Status.READ_ONLY, text)
        return True

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
            self._replies.put_error(connection, frame, error.status, str(error))
            return True
        if self._stall_timer is None:
            loop = asyncio.get_running_loop()
            self._stall_timer = loop.call_later(until_s - now_s, self._on_stall_timeout)
        return False

    def _on_stall_timeout(self) -> None:
        self._stall_timer = None
        for connection in list(self._stalled):
            connection.try_again()
