"""Messages of transactions on one topic: accepted, hidden, then shown or dropped by a marker.

A marker is an entry of the topic's log and follows every message of its transaction, so each replay
of the log gives the same state. If the broker cannot tell whether a message or marker is stored, it
loads the topic again: only the recovered log can tell.
"""

import asyncio
from typing import Any, Final

import structlog

from magnetar.broker.base.errors import (
    BrokerMetadataError,
    BrokerPersistenceError,
    NotAllowedError,
    ServiceNotReadyError,
)
from magnetar.broker.base.naming import is_replicator
from magnetar.broker.features.transactions.buffer_state import BufferState
from magnetar.broker.features.transactions.errors import AlreadyStoredError
from magnetar.broker.features.transactions.ids import TransactionId
from magnetar.broker.features.transactions.markers import Sender, encode_marker, id_in, sender_in
from magnetar.broker.features.transactions.surroundings import (
    EnabledTransactions,
    TransactionalTopic,
)
from magnetar.broker.features.transactions.topic_log import Record
from magnetar.broker.topic import EntryNotes, PublishBatch
from magnetar.ledger.errors import LedgerError, LogTerminatedError
from magnetar.ledger.ports import Clock
from magnetar.ledger.position import Position
from magnetar.sdk.wire import MessageMetadata, Send

_log = structlog.get_logger()

_JOINS: Final = EntryNotes[tuple[TransactionId, Sender]]("in which transaction it is, and whose")


class TransactionBuffer:
    """State of the transactions that have messages in one topic's log."""

    def __init__(
        self, topic: TransactionalTopic, transactions: EnabledTransactions, clock: Clock
    ) -> None:
        self._topic = topic
        self._transactions = transactions
        self._clock = clock
        self._ending: dict[TransactionId, asyncio.Future[Position]] = {}
        self._accepted: dict[TransactionId, dict[str, tuple[int, int]]] = {}
        """Last message of each producer that was handed to the log, stored or not, by
        transaction."""
        self._ending_beside: dict[TransactionId, bool] = {}
        """Ends whose append to the transaction log is not durable yet; the value is whether it
        commits."""

    @property
    def state(self) -> BufferState:
        state = self._transactions.state
        assert state is not None, "the topic has transactions"
        return state

    # Messages

    def check(
        self, batch: PublishBatch, send: Send, metadata: MessageMetadata, _payload: bytes
    ) -> None:
        """Check the next message of a batch, and note its transaction.

        Raises:
            NotAllowedError: its transaction has ended here, or it claims to be a marker.
            AlreadyStoredError: it was sent before, and is stored.
            BrokerPersistenceError: it was sent before, and may be stored soon.
            BrokerMetadataError: its metadata name another transaction than SEND does. A replay has
                the metadata alone.
        """
        if metadata.HasField("marker_type") and not is_replicator(batch.producer_name):
            raise NotAllowedError(
                f"{self._topic.name}: clients may not publish transaction markers"
            )
        txn = None if send.txn is None else TransactionId(*send.txn)
        if id_in(metadata) != txn:
            raise BrokerMetadataError(
                f"{self._topic.name}: a message of transaction {txn} says in its metadata that it "
                f"is of {id_in(metadata)}"
            )
        if txn is None:
            return
        if self.has_ended(txn):
            raise NotAllowedError(f"{self._topic.name}: transaction {txn} has ended")
        sender = sender_in(metadata)
        if self.state.is_stored(txn, sender):
            raise AlreadyStoredError(f"{sender.name} has sent {sender.order[0]} before")
        accepted = self._accepted.setdefault(txn, {})
        if sender.order <= accepted.get(sender.name, (-1, -1)):
            raise BrokerPersistenceError(
                f"{self._topic.name}: the same message is being stored: send it again"
            )
        accepted[sender.name] = sender.order
        _JOINS.add(batch, (txn, sender))

    def has_ended(self, txn: TransactionId) -> bool:
        """Whether no more messages of a transaction are taken. If its end fails, the topic is
        loaded again."""
        return txn in self.state.ended or txn in self._ending

    def last_sequence_id(self, name: str) -> int:
        """Return the last sequence id of a producer name in transactions that are open here; -1 if
        it has sent none. The next producer of that name continues from it."""
        if self._transactions.state is None:
            return -1
        orders = [
            senders[name]
            for senders in (
                *(found.senders for found in self.state.open.values()),
                *self._accepted.values(),
            )
            if name in senders
        ]
        return max(orders, default=(-1, -1))[0]

    def handed(self, batch: PublishBatch) -> None:
        """Hide the transactional messages of a batch that is about to be appended."""
        if batch.notes is not None and _JOINS in batch.notes:
            batch.handed_over = self.state.handed_over(self._topic.log.last_confirmed)

    def stored(self, batch: PublishBatch, ledger_id: int, first_entry_id: int) -> None:
        """Note the transactional messages of a batch that is now in the log."""
        if not batch.handed_over:
            return
        state, now_ms = self.state, self._clock.wall_ms()
        for at, (txn, sender) in _JOINS.of(batch):
            state.on_entry(txn, Position(ledger_id, first_entry_id + at), sender, now_ms=now_ms)
        state.answered(batch.handed_over)

    def failed(self, batch: PublishBatch, error: LedgerError) -> None:
        """Reload the topic, since a failed batch may be in the log. A terminated log has refused
        it."""
        if not batch.handed_over:
            return
        if isinstance(error, LogTerminatedError):
            self.state.answered(batch.handed_over)
        elif not self._topic.is_closed:
            self._topic.reload("a message of a transaction may be stored or not")

    # Ends

    async def end(self, txn: TransactionId, *, commits: bool, low_watermark: int) -> None:
        """Show or drop a transaction's messages; durable on return. Safe to repeat.

        `low_watermark`: all transactions of its coordinator up to this number have ended
        everywhere; -1: none has.

        Raises:
            NotAllowedError, ServiceNotReadyError, BrokerPersistenceError, LedgerError
        """
        topic = self._topic
        await self._transactions.enable()
        if topic.is_leaving:
            raise ServiceNotReadyError(f"{topic.name} is closing")
        state = self.state
        for late in state.overdue(txn.most, low_watermark):
            if late != txn:
                _log.warning("transaction_never_joined", topic=str(topic.name), txn=str(late))
                await self._mark(late, commits=False)
        state.ended.pass_watermark(txn.most, low_watermark)
        if txn not in state.ended:
            await self._mark(txn, commits=commits)
        elif (known := state.ended.was_committed(txn)) is not None and known is not commits:
            _log.error("transaction_ended_twice", topic=str(topic.name), txn=str(txn))
        if not topic.tenure.holds():
            raise ServiceNotReadyError(f"{topic.name} has another owner")

    async def _mark(self, txn: TransactionId, *, commits: bool) -> None:
        done = self._ending.get(txn)
        if done is None:
            done = self._append(txn, commits=commits)
            self._ending[txn] = done
            self._accepted.pop(txn, None)
            done.add_done_callback(lambda _: self._ending.pop(txn, None))
        try:
            await asyncio.shield(done)
        except LedgerError as error:
            raise BrokerPersistenceError(
                f"{self._topic.name}: the end of transaction {txn} may be stored or not: {error}"
            ) from error

    def _append(self, txn: TransactionId, *, commits: bool) -> "asyncio.Future[Position]":
        topic, state = self._topic, self.state
        number = state.handed_over(topic.log.last_confirmed)
        if topic.log.terminated is not None:
            return self._append_beside(txn, number, commits=commits)
        entry = encode_marker(txn, commits=commits, now_ms=self._clock.wall_ms())

        def on_stored(position: Position) -> None:
            state.on_end(txn, is_committed=commits)
            state.answered(number)
            topic.internal_stored(position, entry)

        record = Record([entry], on_stored)
        record.done.add_done_callback(self._look)
        topic.append(record)
        return record.done

    def _append_beside(
        self, txn: TransactionId, number: int, *, commits: bool
    ) -> "asyncio.Future[Position]":
        """Write an end to the transaction log, since a terminated topic takes no entries."""
        log, state, topic = self._transactions.log, self.state, self._topic
        assert log is not None
        record = log.append({"kind": "end", "txn": list(txn), "commits": commits})
        self._ending_beside[txn] = commits

        def stored(done: "asyncio.Future[Position]") -> None:
            del self._ending_beside[txn]
            if not done.cancelled() and done.exception() is None:
                state.on_end(txn, is_committed=commits)
                state.answered(number)
                topic.log_ended()

        record.done.add_done_callback(stored)
        record.done.add_done_callback(self._look)
        return record.done

    def dump(self) -> dict[str, Any]:
        """Return the state as JSON, for a record that is appended at once. Ends that are still
        being appended to the same log precede that record, so they are included."""
        ending = [[*txn, commits] for txn, commits in self._ending_beside.items()]
        return {**self.state.dump(), "ending": ending}

    def _look(self, done: "asyncio.Future[Position]") -> None:
        if not done.cancelled() and done.exception() is not None and not self._topic.is_closed:
            self._topic.reload("a marker of a transaction may be stored or not")
