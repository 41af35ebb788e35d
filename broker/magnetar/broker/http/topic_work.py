"""Work on a topic out of a path, or on each of its partitions, wherever they are."""

from collections.abc import Awaitable, Callable
from typing import TypeVar

from pydantic import JsonValue

from magnetar.broker.base.errors import TopicNotFoundError
from magnetar.broker.http.context import HttpContext
from magnetar.broker.http.fan_out import on_each
from magnetar.broker.http.refusals import HttpRefusal
from magnetar.broker.topic import Topic
from magnetar.sdk.wire import TopicName

T = TypeVar("T")


class TopicWork:
    """What routes about the data of topics share."""

    def __init__(self, context: HttpContext) -> None:
        self._context = context

    async def each(
        self,
        name: TopicName,
        method: str,
        action: str,
        work: Callable[[Topic], Awaitable[T]],
        body: JsonValue = None,
        *,
        creates: bool = False,
    ) -> list[T | JsonValue]:
        """Do the work on a topic, or on each of its partitions at its owner.

        `method`, `action`, `body`: the request that has another broker do it, see `on_each`.
        `creates`: the topic may appear, if its namespace lets it; and what the work makes may be
        there in some of the partitions.

        Raises:
            ElsewhereError: it is not partitioned, and another broker has it.
            TopicNotFoundError, RequestError
        """
        context = self._context

        async def one(of: TopicName) -> T:
            try:
                there = await context.served(of)
            except TopicNotFoundError:
                if not creates:
                    raise
                there = await context.topics.get(of)
            return await work(there)

        every = await self.partitions(name)
        if every is None:
            return [await one(name)]
        return await on_each(
            context.admin, every, one, method, action, completes=creates, body=body
        )

    async def partitions(self, name: TopicName) -> list[TopicName] | None:
        """Those of a partitioned topic; None: it is none.

        Raises:
            BrokerMetadataError
        """
        record = await self._context.topics.partitioned.find(name)
        if record is None:
            return None
        return [name.partition(index) for index in range(record.partitions)]

    async def single(
        self, tenant: str, namespace: str, topic: str, what: str, domain: str = "persistent"
    ) -> Topic:
        """A topic of this broker that is not partitioned, for `what`, as in "a reset".

        Raises:
            HttpRefusal: 405, it is partitioned.
            ElsewhereError, TopicNotFoundError, RequestError
        """
        name = await self._context.topic(domain, tenant, namespace, topic)
        if await self.partitions(name) is not None:
            raise HttpRefusal(405, f"{what} is for a single partition; {name} has several")
        return await self._context.served(name)
