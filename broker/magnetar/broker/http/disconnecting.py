"""Disconnecting single clients of a topic over HTTP. Not in Pulsar's interface.

A request names a consumer or producer as statistics show it: by name, address, or both. The broker
closes every match, with CLOSE_CONSUMER or CLOSE_PRODUCER of the protocol. Clients then reconnect
after a moment: a disconnect moves work to others, but keeps no client out. The consumer's
unacknowledged messages are delivered again, to the consumers that are connected. The producer's
client sends again what it had no receipt for.

For a partitioned topic, the owner of each partition is asked. A request loads no topic: a topic
that is not loaded has no clients.
"""

from collections.abc import Callable
from typing import Annotated

import structlog
from fastapi import APIRouter, Query
from pydantic import BaseModel, Field

from magnetar.broker.base.errors import NotThereError, TopicNotFoundError
from magnetar.broker.http.bodies import RequestBody
from magnetar.broker.http.context import HttpContext
from magnetar.broker.http.fan_out import TopicWork, on_each
from magnetar.broker.http.late_routes import late_router
from magnetar.broker.http.refusals import HttpRefusal
from magnetar.broker.topic import Topic
from magnetar.broker.topics.operating import disconnect_consumers, disconnect_producers
from magnetar.sdk.wire import TopicName

_log = structlog.get_logger()

_ROOT = "/magnetar/v1/topics"
_TOPIC = _ROOT + "/{domain}/{tenant}/{namespace}/{topic}"
_NAME_CHARACTERS_MAX = 1_000

Name = Annotated[str, Field(max_length=_NAME_CHARACTERS_MAX)]
Part = Annotated[
    bool, Query(description="This is one of several partitions: it may have no such client.")
]


class ConsumerClient(RequestBody):
    """A consumer, as statistics show it. An empty name or address matches all."""

    subscription: Name
    consumer: Name = ""
    address: Name = ""


class ProducerClient(RequestBody):
    """A producer, as statistics show it. An empty name or address matches all."""

    producer: Name = ""
    address: Name = ""


class Disconnected(BaseModel):
    """Number of clients that were disconnected."""

    disconnected: int


class _Disconnecting:
    """Routes that disconnect clients of a topic."""

    def __init__(self, context: HttpContext) -> None:
        self._context = context
        self._work = TopicWork(context)

    async def consumers(
        self,
        domain: str,
        tenant: str,
        namespace: str,
        topic: str,
        client: ConsumerClient,
        part: Part = False,
    ) -> Disconnected:
        """Disconnect a consumer of a subscription; its client reconnects. 404 if there is none."""
        what = _described("consumer", client.consumer, client.address)

        def close(there: Topic) -> int:
            return disconnect_consumers(
                there, client.subscription, name=client.consumer, address=client.address
            )

        name = await self._context.topic(domain, tenant, namespace, topic)
        found = await self._each(name, "consumers", close, client)
        return _told(found, f"{what} of subscription {client.subscription}", name, part=part)

    async def producers(
        self,
        domain: str,
        tenant: str,
        namespace: str,
        topic: str,
        client: ProducerClient,
        part: Part = False,
    ) -> Disconnected:
        """Disconnect a producer of a topic; its client reconnects. 404 if there is none."""
        what = _described("producer", client.producer, client.address)

        def close(there: Topic) -> int:
            return disconnect_producers(there, name=client.producer, address=client.address)

        name = await self._context.topic(domain, tenant, namespace, topic)
        found = await self._each(name, "producers", close, client)
        return _told(found, what, name, part=part)

    async def _each(
        self, name: TopicName, whom: str, close: Callable[[Topic], int], client: RequestBody
    ) -> int:
        """Close clients of a topic, or of all of its partitions, and count them.

        Raises:
            ElsewhereError: the topic is not partitioned, and another broker has it.
            TopicNotFoundError, RequestError
        """

        async def one(part: TopicName) -> int:
            await self._context.check_owner(part)
            there = self._context.topics.served(part)
            if there is not None:
                return close(there)
            if not await self._context.topics.exists(part):
                raise TopicNotFoundError(f"Topic {part} not found")
            return 0

        every = await self._work.partitions(name)
        if every is None:
            return await one(name)
        results = await on_each(
            self._context.admin,
            every,
            one,
            "POST",
            f"{whom}/disconnect?part=true",
            may_be_missing=True,
            body=client.model_dump(),
            root=_ROOT,
        )
        return sum(_count_in(each) for each in results)


def _count_in(answer: object) -> int:
    """Return the number of clients in the answer of this broker or of another one."""
    if isinstance(answer, int):
        return answer
    count = answer.get("disconnected", 0) if isinstance(answer, dict) else 0
    return count if isinstance(count, int) else 0


def _described(kind: str, name: str, address: str) -> str:
    """Return a description of the clients to disconnect.

    Raises:
        HttpRefusal: 412, neither name nor address is given, so all clients would match.
    """
    if not name and not address:
        raise HttpRefusal(412, f"give the name of the {kind}, its address, or both")
    named = f"{kind} {name}" if name else kind
    return f"{named} at {address}" if address else named


def _told(count: int, what: str, topic: TopicName, *, part: bool) -> Disconnected:
    """Log a disconnect and return the answer.

    Raises:
        NotThereError: no client matched, and the request is not for one of several partitions.
    """
    if count:
        _log.info("clients_disconnected", topic=str(topic), what=what, count=count)
    elif not part:
        raise NotThereError(f"{topic} has no {what}: it may have left by itself")
    return Disconnected(disconnected=count)


def disconnecting_router(context: HttpContext) -> APIRouter:
    """Return the routes that disconnect consumers and producers of a topic."""
    router = late_router(tags=["topics"])
    routes = _Disconnecting(context)
    router.post(f"{_TOPIC}/consumers/disconnect", summary="Disconnect a consumer")(routes.consumers)
    router.post(f"{_TOPIC}/producers/disconnect", summary="Disconnect a producer")(routes.producers)
    return router
