"""Messages of transactions on one topic: taken, hidden, and shown or dropped by a marker.

A marker is an entry of the topic's log, so it stands behind every message of its transaction, and
whoever replays the log comes to the same state. If nobody can tell whether a message or marker is
stored, the topic is loaded again: only the recovered log knows.
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
    """What transactions do to one topic's log."""

    def __init__(
        self, topic: TransactionalTopic, transactions: EnabledTransactions, clock: Clock
    ) -> None:
        self._topic = topic
        self._transactions = transactions
        self._clock = clock
        self._ending: dict[TransactionId, asyncio.Future[Position]] = {}
        self._accepted: dict[TransactionId, dict[str, tuple[int, int]]] = {}
        """The last message of each producer that was handed to the log, stored or not."""
        self._ending_beside: dict[TransactionId, bool] = {}
        """Ends on their way to the transaction log, and whether they are commits."""

    @property
    def state(self) -> BufferState:
        state = self._transactions.state
        assert state is not None, "the topic has transactions"
        return state

    # Messages

    def check(
        self, batch: PublishBatch, send: Send, metadata: MessageMetadata, _payload: bytes
    ) -> None:
        """Look at a message that comes next in the batch, and note the transaction it is in.

        Raises:
            NotAllowedError: its transaction has ended here, or it claims to be a marker.
            AlreadyStoredError: it was sent before, and is stored.
            BrokerPersistenceError: it was sent before, and may be stored soon.
            BrokerMetadataError: the metadata, which are all that a replay has, name another one.
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
        if txn in self.state.ended or txn in self._ending:
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

    def last_sequence_id(self, name: str) -> int:
        """The last one that a producer of that name has sent in a transaction that is open here,
        for the next of that name to go on from; -1: none has."""
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
        """A batch is about to be appended: what of it is in transactions is hidden from now on."""
        if batch.notes is not None and _JOINS in batch.notes:
            batch.handed_over = self.state.handed_over(self._topic.log.last_confirmed)

    def stored(self, batch: PublishBatch, ledger_id: int, first_entry_id: int) -> None:
        """A batch is in the log."""
        if not batch.handed_over:
            return
        state, now_ms = self.state, self._clock.wall_ms()
        for at, (txn, sender) in _JOINS.of(batch):
            state.on_entry(txn, Position(ledger_id, first_entry_id + at), sender, now_ms=now_ms)
        state.answered(batch.handed_over)

    def failed(self, batch: PublishBatch, error: LedgerError) -> None:
        """A batch may be in the log or not; but for a log that takes nothing any more."""
        if not batch.handed_over:
            return
        if isinstance(error, LogTerminatedError):
            self.state.answered(batch.handed_over)
        elif not self._topic.is_closed:
            self._topic.reload("a message of a transaction may be stored or not")

    # Ends

    async def end(self, txn: TransactionId, *, commits: bool, low_watermark: int) -> None:
        """Show or drop a transaction's messages; durable on return. Again and again, if need be.

        `low_watermark`: up to that number all of its coordinator's transactions have ended
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
        """A terminated topic takes no entries; its transactions end all the same."""
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
        """What is known, as JSON, for a record that is appended at once: the ends that are on their
        way in the same log come before it."""
        ending = [[*txn, commits] for txn, commits in self._ending_beside.items()]
        return {**self.state.dump(), "ending": ending}

    def _look(self, done: "asyncio.Future[Position]") -> None:
        if not done.cancelled() and done.exception() is not None and not self._topic.is_closed:
            self._topic.reload("a marker of a transaction may be stored or not")
