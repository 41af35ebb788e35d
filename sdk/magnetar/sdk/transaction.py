"""Transactions: messages and acknowledgements that take effect all together, or not at all.

    async with client.transaction(timeout_ms=60_000) as txn:
        await producer.send(b"result", transaction=txn)
        await consumer.acknowledge(message, transaction=txn)

The end of the block commits the transaction; an exception in the block aborts it. The broker aborts
a transaction that is not ended in time.

If a coordinator's broker is gone or has lost the coordinator, requests are repeated after a new
lookup, until the operation timeout. Repeating is harmless: a transaction that was begun twice
leaves one unused, and all other requests are idempotent.
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from enum import Enum
from types import TracebackType
from typing import Any, Self, TypeVar

from magnetar.sdk.backoff import Backoff
from magnetar.sdk.connection import Connection
from magnetar.sdk.errors import (
    OperationTimeoutError,
    SdkError,
    TransactionEndedError,
    service_error,
)
from magnetar.sdk.ports import Clock
from magnetar.sdk.settings import ClientSettings
from magnetar.sdk.wire import pulsar_pb2 as pb
from magnetar.sdk.wire.errors import NotAllowedError, ServiceError
from magnetar.sdk.wire.pulsar_pb2 import BaseCommand
from magnetar.sdk.wire.topic_name import TopicName

_T = TypeVar("_T")

ASSIGNMENT_TOPIC = TopicName.parse("persistent://pulsar/system/transaction_coordinator_assign")
"""Topic that assigns coordinators: the broker that owns partition n is coordinator n."""


class TransactionState(Enum):
    """State of a transaction, as far as this client knows."""

    OPEN = "open"
    COMMITTED = "committed"
    ABORTED = "aborted"
    UNKNOWN = "unknown"
    """The commit was sent without an answer: the transaction may or may not be committed."""


class Transaction:
    """One transaction. Made by `Client.transaction`, as a context manager or by `begin`."""

    def __init__(self, coordinators: "TransactionCoordinators", timeout_ms: int) -> None:
        self._coordinators = coordinators
        self._timeout_ms = timeout_ms
        self._most = self._least = -1
        self._topics: dict[str, asyncio.Task[None]] = {}
        self._subscriptions: dict[tuple[str, str], asyncio.Task[None]] = {}
        self._under_way: set[asyncio.Task[object]] = set()
        self.state = TransactionState.OPEN
        self.failure: SdkError | None = None
        """Why the transaction cannot be committed; None if it can."""

    @property
    def id(self) -> tuple[int, int]:
        """Most and least significant bits of the id; (-1, -1) before the transaction has begun."""
        return self._most, self._least

    async def begin(self) -> Self:
        """Begin the transaction. The context manager calls this.

        Raises:
            SdkError: no transaction was begun.
        """
        self._most, self._least = await self._coordinators.begin(self._timeout_ms)
        return self

    def __repr__(self) -> str:
        return f"<Transaction {self._most}:{self._least}, {self.state.value}>"

    async def __aenter__(self) -> Self:
        return await self.begin()

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self.state is not TransactionState.OPEN:
            return
        if kind is None:
            await self.commit()
            return
        try:
            await self.abort()
        except SdkError:
            pass  # the broker aborts it after the timeout; the first error counts

    async def commit(self) -> None:
        """Commit; waits for pending sends and acknowledgements first.

        Raises:
            TransactionEndedError: an operation in it failed, so it was aborted; or it had ended.
            InvalidTransactionStatusError, TransactionNotFoundError: it was aborted, for example by
                its timeout.
            SdkError: the commit was not confirmed; `state` is then UNKNOWN.
        """
        self._check_open()
        while self._under_way:
            await asyncio.wait(self._under_way)
        if self.failure is not None:
            failure = self.failure
            await self.abort()
            raise TransactionEndedError(f"transaction {self.id} is aborted: {failure}") from failure
        self.state = TransactionState.UNKNOWN
        try:
            await self._coordinators.end(self._most, self._least, commits=True)
        except ServiceError as error:
            if not error.retryable:
                self.state = TransactionState.ABORTED
            raise
        self.state = TransactionState.COMMITTED

    async def abort(self) -> None:
        """Abort, so that nothing in the transaction takes effect.

        Raises:
            SdkError: the abort was not confirmed; the broker aborts after the timeout.
        """
        self._check_open()
        self.state = TransactionState.ABORTED
        while self._under_way:
            await asyncio.wait(self._under_way)
        await self._coordinators.end(self._most, self._least, commits=False)

    # -- for producers and consumers

    async def join_topic(self, topic: str) -> None:
        """Add a topic to the transaction, before the first message to it."""
        task = self._topics.get(topic)
        if task is None:
            work = self._coordinators.join_topic(self._most, self._least, topic)
            task = self._topics[topic] = asyncio.create_task(work)
        await self._joined(task)

    async def join_subscription(self, topic: str, subscription: str) -> None:
        """Add a subscription to the transaction, before the first acknowledgement on it."""
        key = (topic, subscription)
        task = self._subscriptions.get(key)
        if task is None:
            work = self._coordinators.join_subscription(self._most, self._least, *key)
            task = self._subscriptions[key] = asyncio.create_task(work)
        await self._joined(task)

    async def _joined(self, task: "asyncio.Task[None]") -> None:
        self._check_open()
        await asyncio.shield(task)
        self._check_open()

    def start(self, work: Coroutine[object, object, _T]) -> "asyncio.Task[_T]":
        """Run an operation in the transaction. If it fails or is cancelled, the transaction cannot
        be committed any more."""
        task: asyncio.Task[_T] = asyncio.create_task(work)
        self._under_way.add(task)
        task.add_done_callback(self._ran)
        return task

    def _ran(self, task: "asyncio.Task[object]") -> None:
        self._under_way.discard(task)
        if task.cancelled():
            # It may or may not have been carried out: a commit might lose it.
            error: BaseException | None = TransactionEndedError("an operation in it was cancelled")
        else:
            error = task.exception()
        if isinstance(error, SdkError) and self.failure is None:
            self.failure = error

    def _check_open(self) -> None:
        if self.state is not TransactionState.OPEN:
            raise TransactionEndedError(f"transaction {self.id} has ended: {self.state.value}")
        if self._least < 0:
            raise TransactionEndedError("the transaction has not begun: use `async with`")


class TransactionCoordinators:
    """Requests to the transaction coordinators of a cluster, for one client."""

    def __init__(
        self,
        *,
        count: Callable[[str], Awaitable[int]],
        find: Callable[[TopicName], Awaitable[Connection]],
        settings: ClientSettings,
        clock: Clock,
    ) -> None:
        """Take the client's services.

        `count` returns the number of partitions of a topic. `find` returns a connection to a
        topic's owner.
        """
        self._count, self._find = count, find
        self._settings = settings
        self._clock = clock
        self._coordinators = 0
        self._next = 0
        self._connected: dict[int, Connection] = {}
        """Last known connection to each coordinator."""

    async def begin(self, timeout_ms: int) -> tuple[int, int]:
        """Begin a transaction and return its id; coordinators take turns."""

        def command(number: int, request_id: int) -> BaseCommand:
            return BaseCommand(
                type=BaseCommand.NEW_TXN,
                newTxn=pb.CommandNewTxn(
                    request_id=request_id, txn_ttl_millis=timeout_ms, tc_id=number
                ),
            )

        if not self._coordinators:
            self._coordinators = await self._count(str(ASSIGNMENT_TOPIC))
            if not self._coordinators:
                raise NotAllowedError(
                    "the cluster has no transaction coordinators: is "
                    "transaction_coordinator_enabled off?"
                )
        number, self._next = self._next % self._coordinators, self._next + 1
        answer = (await self._ask(number, command)).newTxnResponse
        return answer.txnid_most_bits, answer.txnid_least_bits

    async def join_topic(self, most: int, least: int, topic: str) -> None:
        """Add a topic to a transaction, for messages."""
        await self._ask(
            most,
            lambda _, request_id: BaseCommand(
                type=BaseCommand.ADD_PARTITION_TO_TXN,
                addPartitionToTxn=pb.CommandAddPartitionToTxn(
                    request_id=request_id,
                    txnid_most_bits=most,
                    txnid_least_bits=least,
                    partitions=[topic],
                ),
            ),
        )

    async def join_subscription(self, most: int, least: int, topic: str, subscription: str) -> None:
        """Add a subscription to a transaction, for acknowledgements."""
        await self._ask(
            most,
            lambda _, request_id: BaseCommand(
                type=BaseCommand.ADD_SUBSCRIPTION_TO_TXN,
                addSubscriptionToTxn=pb.CommandAddSubscriptionToTxn(
                    request_id=request_id,
                    txnid_most_bits=most,
                    txnid_least_bits=least,
                    subscription=[pb.Subscription(topic=topic, subscription=subscription)],
                ),
            ),
        )

    async def end(self, most: int, least: int, *, commits: bool) -> None:
        """Commit or abort a transaction."""
        await self._ask(
            most,
            lambda _, request_id: BaseCommand(
                type=BaseCommand.END_TXN,
                endTxn=pb.CommandEndTxn(
                    request_id=request_id,
                    txnid_most_bits=most,
                    txnid_least_bits=least,
                    txn_action=pb.COMMIT if commits else pb.ABORT,
                ),
            ),
        )

    async def _ask(self, number: int, command: Callable[[int, int], BaseCommand]) -> BaseCommand:
        """Send a request to a coordinator, with retries, and return the answer.

        Raises:
            ServiceError: the coordinator refused.
            OperationTimeoutError: it did not answer in time; the outcome is unknown.
        """
        settings = self._settings
        deadline_s = self._clock.monotonic_s() + settings.operation_timeout_ms / 1000
        backoff = Backoff(
            min_s=settings.reconnect_delay_min_ms / 1000,
            max_s=settings.reconnect_delay_max_ms / 1000,
        )
        while True:
            try:
                connection = await self._connection(number)
                return await self._request(connection, number, command)
            except SdkError as error:
                if not error.retryable:
                    raise
                self._connected.pop(number, None)
                if self._clock.monotonic_s() + backoff.following_s >= deadline_s:
                    raise OperationTimeoutError(
                        f"transaction coordinator {number} did not answer within "
                        f"{settings.operation_timeout_ms} ms; last: {error}"
                    ) from error
            await asyncio.sleep(backoff.next_s())

    async def _connection(self, number: int) -> Connection:
        connection = self._connected.get(number)
        if connection is not None and connection.is_open:
            return connection
        connection = await self._find(ASSIGNMENT_TOPIC.partition(number))

        def command(number: int, request_id: int) -> BaseCommand:
            return BaseCommand(
                type=BaseCommand.TC_CLIENT_CONNECT_REQUEST,
                tcClientConnectRequest=pb.CommandTcClientConnectRequest(
                    request_id=request_id, tc_id=number
                ),
            )

        await self._request(connection, number, command)
        self._connected[number] = connection
        return connection

    async def _request(
        self, connection: Connection, number: int, command: Callable[[int, int], BaseCommand]
    ) -> BaseCommand:
        request_id = connection.next_request_id()
        answer = await connection.request(request_id, command(number, request_id))
        response: Any
        for field, response in answer.ListFields():
            if field.name.endswith("Response") and response.HasField("error"):
                raise service_error(response.error, str(response.message))
        return answer
