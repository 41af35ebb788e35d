"""Fence requests, and the refusal of requests that a fence forbids.

A fence, and its effect on other requests, is visible only when it is durable (contract C2, defects
D18 and D20). `fencing.py` has the states.
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
    """Fencing of ledgers on request."""

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
        """Fence the ledger; call `proceed` when the fence is durable, else reply with the error.

        The reply has up to `bytes_max` bytes. Requests that wait for the fence count as pending
        reads: one fence answers them all at once, so their number must be bounded (defect B23).
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
        """Return the ledger if the key is right; else reply with an error and return None."""
        ledger = self._ledgers.admit(frame.ledger_id, key)
        if ledger is None:
            self.refuse_key(connection, frame)
        return ledger

    def admit_read(self, connection: Connection, frame: Frame, key: bytes) -> bool:
        """Return whether the key opens the ledger for reading; if not, reply with an error."""
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
        """Refuse a request whose key is not that of the ledger."""
        text = f"this is not the master key of ledger {frame.ledger_id}"
        self._replies.put_error(connection, frame, Status.UNAUTHORIZED, text)

    def refuse_deleted(self, connection: Connection, frame: Frame) -> None:
        """Refuse a writer's request to a ledger that was deleted here (defect B13), or whose fence
        may be lost (D16)."""
        text = (
            f"ledger {frame.ledger_id} was deleted, or closed before this bookie lost data: it "
            f"takes no more adds"
        )
        self._replies.put_error(connection, frame, Status.FENCED, text)

    def refuse(self, connection: Connection, frame: Frame, ledger: LedgerDescriptor) -> None:
        """Refuse a request that a fence forbids, once a reply may reveal the fence."""

        def refuse(error: JournalFullError | None) -> None:
            if error is None:
                text = f"ledger {ledger.ledger_id} is fenced"
                self._replies.put_error(connection, frame, Status.FENCED, text)
            else:
                self._replies.put_error(connection, frame, error.status, str(error))

        if ledger.fence is FenceState.PENDING:
            # A reply must not reveal a fence that could still be lost: this one waits for it, too.
            ledger.wait_for_fence(refuse)
        elif ledger.fence is FenceState.DURABLE:
            refuse(None)
        else:
            text = f"ledger {ledger.ledger_id} is being fenced, but the fence could not be written"
            self._replies.put_error(connection, frame, Status.IO_ERROR, text)
