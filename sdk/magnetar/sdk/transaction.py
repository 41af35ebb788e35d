"""Transactions: messages and acknowledgements that take effect all together, or not at all.

async with client.transaction(timeout_ms=60_000) as txn:
    await producer.send(b"result", transaction=txn)
    await consumer.acknowledge(message, transaction=txn)

At the end of the block the transaction is committed; if it raises, aborted. A broker that does not
hear of an end in time aborts.
"""

import asyncio
from collections.abc import Coroutine
from enum import Enum
from types import TracebackType
from typing import Self, TypeVar

from magnetar.sdk.errors import SdkError, TransactionEndedError
from magnetar.sdk.transaction_coordinators import TransactionCoordinators
from magnetar.sdk.wire.errors import ServiceError

_T = TypeVar("_T")


class TransactionState(Enum):
    """As far as this client knows."""

    OPEN = "open"
    COMMITTED = "committed"
    ABORTED = "aborted"
    UNKNOWN = "unknown"
    """It was to be committed, and no answer came: it is, or is not."""


class Transaction:
    """One transaction. Made by `Client.transaction`, as a context manager or by `begin`."""

    def __init__(self, coordinators: TransactionCoordinators, timeout_ms: int) -> None:
        self._coordinators = coordinators
        self._timeout_ms = timeout_ms
        self._most = self._least = -1
        self._topics: dict[str, asyncio.Task[None]] = {}
        self._subscriptions: dict[tuple[str, str], asyncio.Task[None]] = {}
        self._under_way: set[asyncio.Task[object]] = set()
        self.state = TransactionState.OPEN
        self.failure: SdkError | None = None
        """Why it cannot be committed; None: it can."""

    @property
    def id(self) -> tuple[int, int]:
        """Most and least significant bits; (-1, -1) before it has begun."""
        return self._most, self._least

    async def begin(self) -> Self:
        """Begin. The context manager does it.

        Raises:
            SdkError: there is no transaction.
        """
        self._most, self._least = await self._coordinators.begin(self._timeout_ms)
        return self

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
            pass  # the broker aborts it when its time is over; what went wrong first counts

    async def commit(self) -> None:
        """Have everything take effect; waits for what is under way first.

        Raises:
            TransactionEndedError: something in it has failed, so it was aborted; or it had ended.
            InvalidTransactionStatusError, TransactionNotFoundError: it was aborted, by its timeout
                for example.
            SdkError: not known to be committed; `state` is UNKNOWN then.
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
        """Have nothing of it take effect.

        Raises:
            SdkError: the broker does not know of that, and aborts when the time is over.
        """
        self._check_open()
        self.state = TransactionState.ABORTED
        while self._under_way:
            await asyncio.wait(self._under_way)
        await self._coordinators.end(self._most, self._least, commits=False)

    # -- for producers and consumers

    async def join_topic(self, topic: str) -> None:
        """Before the first message to a topic."""
        task = self._topics.get(topic)
        if task is None:
            work = self._coordinators.join_topic(self._most, self._least, topic)
            task = self._topics[topic] = asyncio.create_task(work)
        await self._joined(task)

    async def join_subscription(self, topic: str, subscription: str) -> None:
        """Before the first acknowledgement on a subscription."""
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
        """Do something in it. If that fails, or is cancelled, it cannot be committed any more."""
        task: asyncio.Task[_T] = asyncio.create_task(work)
        self._under_way.add(task)
        task.add_done_callback(self._ran)
        return task

    def _ran(self, task: "asyncio.Task[object]") -> None:
        self._under_way.discard(task)
        if task.cancelled():
            # It may have been done or not: to commit as if it had been would lose it.
            error: BaseException | None = TransactionEndedError("something in it was cancelled")
        else:
            error = task.exception()
        if isinstance(error, SdkError) and self.failure is None:
            self.failure = error

    def _check_open(self) -> None:
        if self.state is not TransactionState.OPEN:
            raise TransactionEndedError(f"transaction {self.id} has ended: {self.state.value}")
        if self._least < 0:
            raise TransactionEndedError("the transaction has not begun: use `async with`")
