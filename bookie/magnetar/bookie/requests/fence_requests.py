"""Fencing a ledger on request, and refusing what a fence forbids.

A fence, and what it makes of other requests, is visible only when it is durable (contract C2,
defects D18 and D20). The states themselves are in `fencing.py`.
"""

import asyncio
from collections.abc import Callable

from magnetar.bookie.errors import JournalFullError
from magnetar.bookie.journaling.journal_format import NewRecord, RecordType
from magnetar.bookie.metrics import BookieMetrics
from magnetar.bookie.requests.fencing import FenceState, LedgerDescriptor, LedgerTable
from magnetar.bookie.requests.replies import Batch, Connection, Replies, journal_key, read_charge
from magnetar.bookie.storage import LedgerStorage
from magnetar.ledger.wire import MASTER_KEY_BYTES, Frame, Status


class FenceRequests:
    """Fences on request."""

    def __init__(
        self,
        storage: LedgerStorage,
        ledgers: LedgerTable,
        replies: Replies,
        metrics: BookieMetrics,
    ) -> None:
        self._storage = storage
        self._ledgers = ledgers
        self._replies = replies
        self._metrics = metrics

    def after_fence(
        self, frame: Frame, key: bytes, batch: Batch, bytes_max: int, proceed: Callable[[], None]
    ) -> None:
        """Fence the ledger, and `proceed` when that is durable; else reply with the error.

        The reply will have up to `bytes_max`. Those that wait count as reads under way: one fence
        answers them all at once, so there must not be too many (defect B23).
        """
        connection, ledger_id = batch.context.connection, frame.ledger_id
        self._metrics.fence_requests += 1
        if len(key) != MASTER_KEY_BYTES:
            text = f"fencing ledger {ledger_id} needs its master key of {MASTER_KEY_BYTES} bytes"
            self._replies.put_error(connection, frame, Status.UNAUTHORIZED, text)
            return
        ledger = self.admit(connection, frame, key)
        if ledger is None:
            return
        if ledger.request_fence():
            self._storage.put_state(ledger_id, ledger.state)
            journal_key(ledger, batch)
            batch.add(NewRecord(RecordType.FENCE, ledger_id, b""))
            batch.context.fences.append(ledger)
        if ledger.fence is FenceState.DURABLE:
            proceed()
            return

        charge = read_charge(bytes_max)
        connection.reads_bytes += charge

        def on_written(error: JournalFullError | None) -> None:
            connection.reads_bytes -= charge
            if error is None:
                proceed()
            else:
                self._replies.put_error(connection, frame, error.status, str(error))
            self._replies.send_much(connection)
            asyncio.get_running_loop().call_soon(connection.try_again)

        ledger.wait_for_fence(on_written)

    def admit(self, connection: Connection, frame: Frame, key: bytes) -> LedgerDescriptor | None:
        """The ledger, if the key is its key; else the reply says so."""
        ledger = self._ledgers.admit(frame.ledger_id, key)
        if ledger is None:
            self.refuse_key(connection, frame)
        return ledger

    def admit_read(self, connection: Connection, frame: Frame, key: bytes) -> bool:
        """Whether the key opens the ledger for reading; if not, the reply says so."""
        if self._ledgers.may_read(frame.ledger_id, key):
            return True
        if key:
            self.refuse_key(connection, frame)
        else:
            text = (
                f"ledger {frame.ledger_id} has a password: reads need its master key, which "
                "readers of older releases do not send"
            )
            self._replies.put_error(connection, frame, Status.UNAUTHORIZED, text)
        return False

    def refuse_key(self, connection: Connection, frame: Frame) -> None:
        """Refuse what has another key than the ledger."""
        text = f"this is not the master key of ledger {frame.ledger_id}"
        self._replies.put_error(connection, frame, Status.UNAUTHORIZED, text)

    def refuse_deleted(self, connection: Connection, frame: Frame) -> None:
        """Refuse what a writer may not do to a ledger that was deleted here (defect B13), or of
        which the fence may be lost (D16)."""
        text = (
            f"ledger {frame.ledger_id} was deleted, or closed before this bookie lost data: it "
            f"takes no more adds"
        )
        self._replies.put_error(connection, frame, Status.FENCED, text)

    def refuse(self, connection: Connection, frame: Frame, ledger: LedgerDescriptor) -> None:
        """Refuse what a fence forbids, as soon as that may be said."""

        def refuse(error: JournalFullError | None) -> None:
            if error is None:
                text = f"ledger {ledger.ledger_id} is fenced"
                self._replies.put_error(connection, frame, Status.FENCED, text)
            else:
                self._replies.put_error(connection, frame, error.status, str(error))

        if ledger.fence is FenceState.PENDING:
            # A fence that a reply told of must not be lost: this reply waits for it too.
            ledger.wait_for_fence(refuse)
        elif ledger.fence is FenceState.DURABLE:
            refuse(None)
        else:
            text = f"ledger {ledger.ledger_id} is being fenced, but the fence could not be written"
            self._replies.put_error(connection, frame, Status.IO_ERROR, text)
