"""The transaction commands of one connection: from clients, and from coordinators of other brokers.

Each command has its own type of answer, errors included. If transactions are off, all are refused
by a plain ERROR (protocol sheet, section 13).
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from functools import partial
from typing import Any, TypeVar

from magnetar.broker.base import naming, replies
from magnetar.broker.base.errors import (
    AuthorizationError,
    NotAllowedError,
    PartitionedTopicError,
    RequestError,
    TopicNotFoundError,
)
from magnetar.broker.features.transactions.coordinator import Coordinator
from magnetar.broker.features.transactions.errors import (
    TransactionNotFoundError,
    TransactionsDisabledError,
)
from magnetar.broker.features.transactions.ids import TransactionId, is_coordinator
from magnetar.broker.features.transactions.topic_transactions import (
    TopicTransactions,
    transactions_of,
)
from magnetar.broker.protocol.link import Link
from magnetar.broker.protocol.login import Login
from magnetar.broker.security import Action, Cluster, Subscription, Topic
from magnetar.broker.topics.services import Services
from magnetar.sdk.wire import BaseCommand, TopicName, encode_command
from magnetar.sdk.wire import pulsar_pb2 as pb

_ANSWERS = {
    "tcClientConnectRequest": ("tcClientConnectResponse", pb.CommandTcClientConnectResponse),
    "newTxn": ("newTxnResponse", pb.CommandNewTxnResponse),
    "addPartitionToTxn": ("addPartitionToTxnResponse", pb.CommandAddPartitionToTxnResponse),
    "addSubscriptionToTxn": (
        "addSubscriptionToTxnResponse",
        pb.CommandAddSubscriptionToTxnResponse,
    ),
    "endTxn": ("endTxnResponse", pb.CommandEndTxnResponse),
    "endTxnOnPartition": ("endTxnOnPartitionResponse", pb.CommandEndTxnOnPartitionResponse),
    "endTxnOnSubscription": (
        "endTxnOnSubscriptionResponse",
        pb.CommandEndTxnOnSubscriptionResponse,
    ),
}

_KINDS = {
    "tcClientConnectRequest": BaseCommand.TC_CLIENT_CONNECT_REQUEST,
    "newTxn": BaseCommand.NEW_TXN,
    "addPartitionToTxn": BaseCommand.ADD_PARTITION_TO_TXN,
    "addSubscriptionToTxn": BaseCommand.ADD_SUBSCRIPTION_TO_TXN,
    "endTxn": BaseCommand.END_TXN,
    "endTxnOnPartition": BaseCommand.END_TXN_ON_PARTITION,
    "endTxnOnSubscription": BaseCommand.END_TXN_ON_SUBSCRIPTION,
}


T = TypeVar("T")

_NAMES_PER_TURN = 100
"""Topics or subscriptions of one command that are checked in one turn of the event loop."""

_TOLD_MAX = 1_000
"""Ended transactions that are remembered per connection; an older one is answered like the first
time."""

_RETRIES = "Magnetar-"
"""Prefix of the versions of clients that retry the end of a transaction by themselves, even on the
same connection, if no answer arrives."""


class TransactionCommands:
    """Transaction commands of one connection."""

    def __init__(self, link: Link, services: Services, login: Login) -> None:
        self._link = link
        self._services = services
        self._login = login
        self._told: dict[TransactionId, None] = {}
        """Transactions whose end was answered on this connection.

        Ending one of these again is an error, as in Pulsar. On another connection it is answered
        like the first time, since a client that has lost a connection does not know the outcome of
        its request.
        """

    def handlers(self) -> dict[int, Callable[[BaseCommand], None]]:
        work: dict[str, Callable[[Any], Awaitable[TransactionId | None]]] = {
            "tcClientConnectRequest": self._connect,
            "newTxn": self._begin,
            "addPartitionToTxn": self._add_topics,
            "addSubscriptionToTxn": self._add_subscriptions,
            "endTxn": self._end,
            "endTxnOnPartition": self._end_on_topic,
            "endTxnOnSubscription": self._end_on_subscription,
        }
        return {_KINDS[name]: partial(self._on_command, name, do) for name, do in work.items()}

    def _on_command(
        self,
        name: str,
        do: Callable[[Any], Awaitable[TransactionId | None]],
        command: BaseCommand,
    ) -> None:
        request = getattr(command, name)
        if not self._services.settings.transaction_coordinator_enabled:
            error = TransactionsDisabledError()
            self._link.write(replies.error(request.request_id, error.code, str(error)))
            return
        # A decision that a client requested must not stop half-way when the connection ends.
        self._link.start(
            self._answer(name, do, request), partial(_refuse, name, request), must_finish=True
        )

    async def _answer(
        self, name: str, do: Callable[[Any], Awaitable[TransactionId | None]], request: Any
    ) -> None:
        txn = await do(request)
        self._link.write(_response(name, request, txn))

    # Commands of clients

    async def _connect(self, request: pb.CommandTcClientConnectRequest) -> None:
        await self._services.coordinators.get(request.tc_id)

    async def _begin(self, request: pb.CommandNewTxn) -> TransactionId:
        coordinator = await self._services.coordinators.get(request.tc_id)
        return await coordinator.begin(request.txn_ttl_millis, self._login.identity.role)

    async def _add_topics(self, request: pb.CommandAddPartitionToTxn) -> None:
        txn = _id_of(request)
        coordinator = await self._own(txn)
        topics: list[str] = []
        async for each in self._participants_in(request.partitions):
            name = naming.topic_of(each)
            await self._login.check(Action.PRODUCE, Topic(name))
            _check_participant(name)
            topics.append(each)
        await coordinator.join(txn, topics)

    async def _add_subscriptions(self, request: pb.CommandAddSubscriptionToTxn) -> None:
        txn = _id_of(request)
        coordinator = await self._own(txn)
        subscriptions: list[tuple[str, str]] = []
        async for each in self._participants_in(request.subscription):
            name = naming.topic_of(each.topic)
            naming.check_subscription(each.subscription)
            await self._login.check(Action.CONSUME, Subscription(name, each.subscription))
            _check_participant(name)
            subscriptions.append((each.topic, each.subscription))
        await coordinator.join(txn, (), subscriptions)

    async def _participants_in(self, names: Sequence[T]) -> AsyncIterator[T]:
        """Yield what a command adds to a transaction; other work gets turns in between.

        Raises:
            NotAllowedError: it is more than a transaction may have.
        """
        most = self._services.settings.transaction_participants_max
        if len(names) > most:
            raise NotAllowedError(
                f"{len(names)} topics or subscriptions for one transaction; the limit is {most}"
            )
        for at, each in enumerate(names, 1):
            yield each
            if at % _NAMES_PER_TURN == 0:
                await asyncio.sleep(0)

    async def _end(self, request: pb.CommandEndTxn) -> None:
        txn = _id_of(request)
        coordinator = await self._own(txn)
        if txn in self._told:
            raise TransactionNotFoundError(
                f"transaction {txn} has ended, and the client was told so"
            )
        await coordinator.end(txn, commits=request.txn_action == pb.COMMIT)
        self._note_told(txn)

    def _note_told(self, txn: TransactionId) -> None:
        if self._link.client_version.startswith(_RETRIES):
            return
        self._told[txn] = None
        if len(self._told) > _TOLD_MAX:
            del self._told[next(iter(self._told))]

    async def _own(self, txn: TransactionId) -> Coordinator:
        """Return the coordinator of a transaction that this client, or an unknown one, has begun.

        Raises:
            AuthorizationError: another role has begun it.
        """
        coordinator = await self._services.coordinators.get(txn.most)
        owner, role = coordinator.owner_of(txn), self._login.identity.role
        if owner and owner != role and self._services.authorizer.is_on:
            raise AuthorizationError(f"transaction {txn} was begun by another role")
        return coordinator

    # Commands of coordinators

    async def _end_on_topic(self, request: pb.CommandEndTxnOnPartition) -> None:
        await self._login.check(Action.ADMINISTER, Cluster())
        transactions = await self._transactions_of(request.topic)
        await transactions.buffer.end(
            _id_of(request),
            commits=request.txn_action == pb.COMMIT,
            low_watermark=_low_watermark(request),
        )

    async def _end_on_subscription(self, request: pb.CommandEndTxnOnSubscription) -> None:
        await self._login.check(Action.ADMINISTER, Cluster())
        transactions = await self._transactions_of(request.subscription.topic)
        await transactions.acks.end(
            request.subscription.subscription,
            _id_of(request),
            commits=request.txn_action == pb.COMMIT,
            low_watermark=_low_watermark(request),
        )

    async def _transactions_of(self, topic: str) -> TopicTransactions:
        name = naming.topic_of(topic)
        topics = self._services.topics
        try:
            found = await topics.get(name, may_create=False)
        except (TopicNotFoundError, PartitionedTopicError):
            # The coordinator takes this answer as final, so it must not come from a store that lags
            # behind.
            await topics.catch_up()
            try:
                found = await topics.get(name, may_create=False)
            except PartitionedTopicError as error:
                # It has been created since the transaction was told of the name. There is no log
                # with anything of the transaction, and never will be one.
                raise TopicNotFoundError(str(error)) from error
        return transactions_of(found)


def _check_participant(name: TopicName) -> None:
    """Refuse a topic that never takes part in transactions.

    Raises:
        NotAllowedError
    """
    if not name.is_persistent:
        raise NotAllowedError(f"{name} is not persistent: it does not support transactions")
    if is_coordinator(name):
        # The coordinator could not read its log any more if the end of a transaction was in it.
        raise NotAllowedError(f"{name} is {Coordinator.reserved_as}: choose another topic")


def _id_of(request: Any) -> TransactionId:
    return TransactionId(request.txnid_most_bits, request.txnid_least_bits)


def _low_watermark(request: Any) -> int:
    field = "txnid_least_bits_of_low_watermark"
    if not request.HasField(field):
        return -1
    value: int = getattr(request, field)
    return -1 if value >> 63 else value  # Java's -1 on the wire


def _refuse(name: str, request: Any, error: RequestError) -> bytes:
    return _response(name, request, None, error)


def _response(
    name: str, request: Any, txn: TransactionId | None, error: RequestError | None = None
) -> bytes:
    field, kind = _ANSWERS[name]
    answer = kind(request_id=request.request_id)
    if error is not None:
        answer.error = error.code
        answer.message = str(error)
    if name != "tcClientConnectRequest":
        if name != "newTxn":
            txn = _id_of(request)
        elif txn is None:
            txn = TransactionId(request.tc_id, 0)
        answer.txnid_most_bits, answer.txnid_least_bits = txn
    command = BaseCommand()
    command.type = _KINDS[name] + 1  # type: ignore[assignment]  # an answer follows its request
    getattr(command, field).CopyFrom(answer)
    return encode_command(command)
