"""Acknowledgements in transactions on one topic: stored, held back, then applied or given back.

The broker answers an acknowledgement once it is durable in the topic's transaction log. At a
commit, the cursor is saved with all of them before the end is written to that log. If a step in
between fails, the coordinator asks again; acknowledging twice changes nothing.
"""

import asyncio
from collections.abc import Collection, Mapping, Sequence
from functools import partial
from typing import Any
from weakref import WeakValueDictionary

from magnetar.broker.base.errors import (
    BrokerPersistenceError,
    NotAllowedError,
    ServiceNotReadyError,
)
from magnetar.broker.features.transactions.errors import (
    InvalidTransactionStatusError,
    TransactionConflictError,
)
from magnetar.broker.features.transactions.ids import TransactionId
from magnetar.broker.features.transactions.pending_acks import (
    Ack,
    HeldCursor,
    PendingAcks,
    PendingAckState,
    dump_ack,
    load_ack,
    repeated_in,
    weight_of,
)
from magnetar.broker.features.transactions.surroundings import (
    EnabledTransactions,
    TransactionalTopic,
)
from magnetar.broker.topic.consumer import Consumer
from magnetar.broker.topic.dispatch.base import SingleActiveDispatcher
from magnetar.broker.topic.subscription import Subscription
from magnetar.cursors import Cursor, CursorError
from magnetar.ledger.errors import LedgerError


class TransactionalAcks:
    """Acknowledgements in transactions, for all subscriptions of one topic."""

    def __init__(
        self,
        topic: TransactionalTopic,
        transactions: EnabledTransactions,
        *,
        pending_acks_max: int,
    ) -> None:
        self._topic = topic
        self._transactions = transactions
        self._pending_acks_max = pending_acks_max
        self.pending: dict[str, PendingAckState] = {}
        """Acknowledgements that open transactions hold, by subscription."""
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        """Locks by subscription: transactions end one at a time on each. A lock exists while it is
        held."""
        self._dropping: set[str] = set()
        """Subscriptions whose cursor is deleted while the `drop` record is not yet durable."""

    @property
    def ending_count(self) -> int:
        """Number of subscriptions on which a transaction is ending now."""
        return len(self._locks)

    # Restoring

    def apply(self, record: Mapping[str, Any]) -> None:
        """Apply a record of the topic's transaction log."""
        name = record["subscription"]
        match record["kind"]:
            case "ack":
                pending = self.pending.setdefault(name, PendingAckState())
                txn = TransactionId(*record["txn"])
                pending.add(txn, [load_ack(each) for each in record["acks"]])
                if record["cumulative"] is not None:
                    pending.add_cumulative(txn, load_ack(record["cumulative"]))
            case "acks_end":
                pending = self.pending.setdefault(name, PendingAckState())
                txn = TransactionId(*record["txn"])
                pending.end(txn)
                pending.ended.note(txn, is_committed=record["commits"])
            case "drop":
                self.pending.pop(name, None)
            case kind:
                raise BrokerPersistenceError(
                    f"{self._topic.name}: a record of the unknown kind {kind!r}"
                )

    def attach(self, subscription: Subscription) -> None:
        """Show an opened subscription which messages transactions hold back."""
        pending = self.pending.get(subscription.name)
        if pending is not None and subscription.is_durable:
            subscription.hold_back(pending, partial(HeldCursor, pending=pending))

    # Acknowledging

    async def acknowledge(
        self,
        subscription: Subscription,
        consumer: Consumer,
        txn: TransactionId,
        acks: Sequence[Ack],
        cumulative: Ack | None,
    ) -> None:
        """Hold messages back for a transaction; durable on return.

        Raises:
            TransactionConflictError, InvalidTransactionStatusError, NotAllowedError
            ServiceNotReadyError, BrokerPersistenceError, LedgerError
        """
        name, topic = subscription.name, self._topic
        if not subscription.is_durable:
            raise NotAllowedError(f"subscription {name} of {topic.name} is not durable")
        await self._transactions.enable()
        if topic.is_closed or subscription.is_closed or not topic.tenure.holds():
            raise ServiceNotReadyError(f"{topic.name} is closing")
        if name in self._dropping:
            raise ServiceNotReadyError(f"subscription {name} of {topic.name} is being deleted")
        pending = self.pending.setdefault(name, PendingAckState())
        if subscription.pending_acks is not pending:
            subscription.hold_back(pending, partial(HeldCursor, pending=pending))
        self._check(subscription, pending, txn, acks, cumulative)
        pending.add(txn, acks)
        if cumulative is not None:
            pending.add_cumulative(txn, cumulative)
        self._taken(subscription, consumer, acks)
        await self._write(
            {
                "kind": "ack",
                "subscription": name,
                "txn": list(txn),
                "acks": [dump_ack(each) for each in acks],
                "cumulative": None if cumulative is None else dump_ack(cumulative),
            }
        )
        if not topic.tenure.holds():
            raise ServiceNotReadyError(f"{topic.name} has another owner")

    def _check(
        self,
        subscription: Subscription,
        pending: PendingAckState,
        txn: TransactionId,
        acks: Sequence[Ack],
        cumulative: Ack | None,
    ) -> None:
        held = pending.transactions.get(txn)
        if txn in pending.ended or (held is not None and held.is_ending):
            raise InvalidTransactionStatusError(
                f"subscription {subscription.name}: transaction {txn} has ended, or is ending"
            )
        if pending.weight + weight_of(acks) > self._pending_acks_max:
            raise NotAllowedError(
                f"subscription {subscription.name} has {pending.weight} acknowledgements in "
                f"transactions; the limit is {self._pending_acks_max}"
            )
        cursor = subscription.cursor
        repeated = repeated_in(acks)
        if repeated is not None:
            raise TransactionConflictError(
                f"subscription {subscription.name}: transaction {txn} acknowledges {repeated} twice"
            )
        for ack in acks:
            pending.check(txn, ack, cursor)
        if cumulative is not None:
            if not isinstance(subscription.dispatcher, SingleActiveDispatcher):
                raise NotAllowedError(
                    f"subscription {subscription.name} is {subscription.type_name}: it cannot be "
                    "acknowledged cumulatively"
                )
            pending.check_cumulative(txn, cumulative, cursor)

    def _taken(self, subscription: Subscription, consumer: Consumer, acks: Sequence[Ack]) -> None:
        dispatcher = subscription.dispatcher
        if dispatcher is None or not dispatcher.keeps_accounts:
            return
        dispatcher.acked(consumer, [each.position for each in acks if not each.words])
        for ack in acks:
            if ack.words:
                dispatcher.partly_acked(ack.position)

    # Ends

    async def end(
        self, name: str, txn: TransactionId, *, commits: bool, low_watermark: int
    ) -> None:
        """Apply a transaction's acknowledgements, or give the messages back; durable on return.

        A subscription that is gone has nothing to end. A non-durable one holds nothing back.
        Neither is recorded, since the topic would otherwise remember each reader that ever existed.

        Raises:
            NotAllowedError, ServiceNotReadyError, BrokerPersistenceError, LedgerError
        """
        # A broker that has lost the topic does not know the topic's subscriptions.
        self._check_owned()
        if self._to_be_told(name) is None:
            return
        await self._transactions.enable()
        lock = self._locks.get(name)
        if lock is None:
            lock = self._locks[name] = asyncio.Lock()
        async with lock:
            self._check_owned()
            subscription = self._to_be_told(name)
            if subscription is None or not subscription.is_open:
                return
            if subscription.is_closed:
                raise ServiceNotReadyError(f"{self._topic.name} is closing")
            pending = self.pending.setdefault(name, PendingAckState())
            pending.ended.pass_watermark(txn.most, low_watermark)
            # An earlier request may have been cancelled while the end was being written, before the
            # messages that the transaction holds were released. Then end it again.
            if txn not in pending.ended or txn in pending.transactions:
                await self._end(subscription, pending, txn, commits=commits)
        self._check_owned()

    def _check_owned(self) -> None:
        topic = self._topic
        if topic.is_closed or not topic.tenure.holds():
            raise ServiceNotReadyError(f"{topic.name} is closing, or has another owner")

    def _to_be_told(self, name: str) -> Subscription | None:
        subscription = self._topic.subscriptions.get(name)
        if subscription is None or not subscription.is_durable or name in self._dropping:
            return None
        return subscription

    async def _end(
        self,
        subscription: Subscription,
        pending: PendingAckState,
        txn: TransactionId,
        *,
        commits: bool,
    ) -> None:
        held = pending.transactions.get(txn)
        if held is not None and commits:
            held.is_ending = True
            await self._commit(subscription, held)
        pending.ended.note(txn, is_committed=commits)
        await self._write(
            {
                "kind": "acks_end",
                "subscription": subscription.name,
                "txn": list(txn),
                "commits": commits,
            }
        )
        held = pending.end(txn)
        if not commits:
            _give_back(subscription, held)
        subscription.wake()

    async def _commit(self, subscription: Subscription, held: PendingAcks) -> None:
        cursor = subscription.cursor
        cursor.ack_many([each.position for each in held.individual.values() if not each.words])
        for ack in held.individual.values():
            if ack.words and not cursor.is_acked(ack.position):
                is_whole = cursor.ack_batch(ack.position, ack.words, ack.batch_size)
                if is_whole and subscription.dispatcher is not None:
                    for consumer in subscription.consumers:
                        if ack.position in consumer.pending:
                            subscription.dispatcher.acked(consumer, [ack.position])
        if held.cumulative is not None:
            cursor.ack_cumulative(*held.cumulative)
        try:
            await cursor.persist()
        except CursorError as error:
            raise BrokerPersistenceError(
                f"subscription {subscription.name}: the committed acknowledgements are not saved: "
                f"{error}"
            ) from error
        if isinstance(cursor, Cursor):
            left = cursor.statistics
            if left.ranges_not_saved or left.batches_not_saved:
                # The transaction log keeps the acknowledgements until all fit into the cursor's
                # record.
                raise BrokerPersistenceError(
                    f"subscription {subscription.name} has more unacknowledged gaps than its "
                    "cursor can save"
                )

    async def drop(self, name: str) -> None:
        """Forget a subscription whose cursor is deleted, so that a later one of that name holds
        nothing back. Create none of that name until this returns.

        Raises:
            BrokerPersistenceError
        """
        if self.pending.pop(name, None) is None:
            return
        self._dropping.add(name)
        try:
            await self._write({"kind": "drop", "subscription": name})
        finally:
            self._dropping.discard(name)

    async def drop_all_but(self, names: Collection[str]) -> None:
        """Drop subscriptions that former owners deleted without a `drop` record; call after
        restoring.

        Raises:
            BrokerPersistenceError
        """
        for name in [each for each in self.pending if each not in names]:
            await self.drop(name)

    async def _write(self, record: dict[str, Any]) -> None:
        log, topic = self._transactions.log, self._topic
        assert log is not None
        try:
            await asyncio.shield(log.append(record).done)
        except LedgerError as error:
            if not topic.is_closed:
                topic.reload("an acknowledgement in a transaction may be stored or not")
            raise BrokerPersistenceError(
                f"{topic.name}: {record['kind']} may be stored or not: {error}"
            ) from error


def _give_back(subscription: Subscription, held: PendingAcks) -> None:
    """Deliver again what an aborted transaction held back."""
    dispatcher = subscription.dispatcher
    if not held.individual and held.cumulative is None:
        return
    if dispatcher is None or not dispatcher.consumers:
        return  # The next consumer begins at the first unacknowledged entry.
    if isinstance(dispatcher, SingleActiveDispatcher):
        dispatcher.rewind()  # To keep the order, everything from there on is delivered again.
        return
    positions = set(held.individual)
    for consumer in list(dispatcher.consumers):
        theirs = [each for each in positions if each in consumer.pending]
        if theirs:  # Batches that the transaction acknowledged in part.
            positions.difference_update(theirs)
            dispatcher.redeliver(consumer, theirs)
    passed = dispatcher.read_after
    dispatcher.deliver(sorted(each for each in positions if each <= passed))
