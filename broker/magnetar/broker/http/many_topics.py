"""Many topics in one request, for those who read thousands of them. Beyond Pulsar's interface.

A request costs the broker more than what most of them ask for: a query over a thousand topics that
asks for each of them alone takes seconds. Each topic is answered for itself: one that is refused
spoils no other, and rights are checked topic by topic. Nothing is asked of other brokers: their
topics come back in `elsewhere`, with the address to ask, as a redirect would name it.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from enum import StrEnum
from typing import Annotated, Any, TypeVar

from fastapi import APIRouter, Query, Request
from fastapi.responses import JSONResponse
from pydantic import Field

from magnetar.broker.base import naming
from magnetar.broker.base.errors import (
    BrokerPersistenceError,
    NotThereError,
    TopicNotFoundError,
)
from magnetar.broker.base.json_values import Flag, WholeNumber
from magnetar.broker.http.bodies import RequestBody
from magnetar.broker.http.context import HttpContext
from magnetar.broker.http.fan_out import TopicWork
from magnetar.broker.http.internal_stats import topic_internal_stats
from magnetar.broker.http.late_routes import late_router
from magnetar.broker.http.refusals import ElsewhereError, status_of
from magnetar.broker.http.schemas import shown_schema
from magnetar.broker.http.subscriptions import ResetCursorData, first_of
from magnetar.broker.schemas.errors import SchemaNotFoundError
from magnetar.broker.security import Action, Resource, Subscription, Topic
from magnetar.broker.topic import Topic as ServedTopic
from magnetar.broker.topics import operating
from magnetar.broker.topics.inspecting import entry_at, first_at, messages_of_last
from magnetar.ledger.position import LATEST, Position
from magnetar.sdk.wire import MalformedPayloadError, TopicName, split_payload

TOPICS_MAX = 1_000
"""Topics that one request may name."""

READ_HOLD_S_MAX = 24 * 3_600
_AT_ONCE = 32
"""Topics of a request that are worked on at the same time."""

_UNFINISHED_MS_MAX = 60_000
"""How long the rest of a message in chunks is waited for; consumers wait as long by default."""

Check = Callable[[Request, Action, Resource], Awaitable[None]]
Answer = dict[str, Any]
T = TypeVar("T")


class TopicNames(RequestBody):
    """Full names of topics, or of partitions."""

    topics: list[str] = Field(max_length=TOPICS_MAX)


class StorageQuestion(TopicNames):
    """Of which topics somebody wants to know how they are stored, to read them."""

    read_hold_s: WholeNumber = Field(default=0, alias="readHoldS", ge=0, le=READ_HOLD_S_MAX)
    """So long the topics count as used, although whoever reads them does not connect."""
    counts_messages: Flag = Field(default=False, alias="countsMessages")
    """Tell of how many messages the last entry is, where nothing was published since the topic was
    loaded: a reader that limits messages has no other mean then."""


class TimeQuestion(TopicNames):
    """Question for the first message of each topic since a time."""

    time_ms: WholeNumber = Field(alias="timeMs")
    """Milliseconds since 1970."""


class HoldAction(StrEnum):
    """What is to be done with a subscription."""

    HOLD = "hold"
    """Make it, or move it if it is there."""
    MOVE = "move"
    """Move it if it is there."""
    DELETE = "delete"


class Holds(RequestBody):
    """One subscription of each of these topics."""

    subscription: str
    action: HoldAction
    topics: dict[str, ResetCursorData | None] = Field(max_length=TOPICS_MAX)
    """Where it is to go on; null for those that are deleted."""
    spares_unfinished: Flag = Field(default=False, alias="sparesUnfinished")
    """Do not move over the beginning of a message in chunks whose end may still come."""


class _ManyTopics:
    """Routes that ask many topics at once."""

    def __init__(self, context: HttpContext, check: Check) -> None:
        self._context = context
        self._check = check
        self._partitions_of = TopicWork(context).partitions

    async def internal_stats(self, request: Request, question: StorageQuestion) -> JSONResponse:
        """Return `internalStats` of each topic; of a partitioned one only its number of partitions.
        404 as well for a partition that its topic should have.

        With `readHoldS` the topics count as used for so long, and are not deleted as inactive.
        With `countsMessages`, `lastEntryMessages` of those whose counters are 0.
        """

        async def one(name: TopicName) -> Answer:
            await self._check(request, Action.LOOKUP, Topic(name))
            await self._context.topics.check_namespace(name.namespace_name)
            # What is served is certainly no partitioned topic, and there: most are.
            if self._context.topics.served(name) is None:
                every = await self._partitions_of(name) if name.partition_index < 0 else None
                if every is not None:
                    return {"partitions": len(every)}
                await self._context.check_owner(name)
                # A partition that is not there is made by whoever asks for it; who reads makes
                # none, and is told that what was in it is gone.
                if not await self._context.topics.exists(name):
                    raise TopicNotFoundError(f"Topic {name} not found")
            there = await self._context.served(name)
            if question.read_hold_s:
                there.use.hold_for_reading(question.read_hold_s)
            stats = topic_internal_stats(there)
            if question.counts_messages and not stats["entriesAddedCounter"]:
                # A mean to go by: without it, an entry counts as one message.
                with suppress(BrokerPersistenceError):
                    stats["lastEntryMessages"] = await messages_of_last(there)
            return stats

        return await _each(request, dict.fromkeys(question.topics), lambda name, _: one(name))

    async def schemas(
        self,
        request: Request,
        question: TopicNames,
        every: Annotated[bool, Query(alias="allVersions", description="Oldest first.")] = False,
    ) -> JSONResponse:
        """A list for each topic: its newest schema, or all versions; empty if it has none."""

        async def one(name: TopicName) -> list[Answer]:
            await self._check(request, Action.LOOKUP, Topic(name))
            await self._context.topics.check_namespace(name.namespace_name)
            try:
                if every:
                    return [
                        shown_schema(each) for each in await self._context.schemas.versions(name)
                    ]
                return [shown_schema(await self._context.schemas.latest(name))]
            except SchemaNotFoundError:
                return []

        return await _each(
            request, dict.fromkeys(question.topics), lambda name, _: one(name.partitioned)
        )

    async def message_ids(self, request: Request, question: TimeQuestion) -> JSONResponse:
        """The place behind the last message, of topics in which none is so young."""

        async def one(name: TopicName) -> Answer:
            await self._check(request, Action.CONSUME, Topic(name))
            await self._context.topics.check_namespace(name.namespace_name)
            position = await first_at(await self._context.served(name), question.time_ms)
            return {"ledgerId": position.ledger_id, "entryId": position.entry_id}

        return await _each(request, dict.fromkeys(question.topics), lambda name, _: one(name))

    async def subscriptions(self, request: Request, holds: Holds) -> JSONResponse:
        """Make, move or delete the subscription of one name in each topic."""

        async def one(name: TopicName, place: ResetCursorData | None) -> Answer:
            await self._check(request, Action.CONSUME, Subscription(name, holds.subscription))
            await self._context.topics.check_namespace(name.namespace_name)
            there = await _served(self._context, name, creates=holds.action is HoldAction.HOLD)
            return await _hold(self._context, there, holds, place)

        return await _each(request, holds.topics, one)


def many_topics_router(context: HttpContext, check: Check) -> APIRouter:
    """The routes below /magnetar/v1/topics. `check` refuses a role without the right."""
    router = late_router(tags=["many topics"])
    routes = _ManyTopics(context, check)
    router.post("/magnetar/v1/topics/internalStats", summary="How many topics are stored")(
        routes.internal_stats
    )
    router.post("/magnetar/v1/topics/schemas", summary="The schemas of many topics")(routes.schemas)
    router.post("/magnetar/v1/topics/messageIds", summary="The first messages at or after a time")(
        routes.message_ids
    )
    router.post("/magnetar/v1/topics/subscriptions", summary="Reset a subscription of many topics")(
        routes.subscriptions
    )
    return router


async def _served(context: HttpContext, name: TopicName, *, creates: bool) -> ServedTopic:
    try:
        return await context.served(name)
    except TopicNotFoundError:
        if not creates:
            raise
        return await context.topics.get(name)


async def _hold(
    context: HttpContext, topic: ServedTopic, holds: Holds, place: ResetCursorData | None
) -> Answer:
    name = holds.subscription
    if holds.action is HoldAction.DELETE:
        await topic.subscriptions.delete(operating.subscription_of(topic, name), is_forced=False)
        return {}
    if (
        holds.spares_unfinished
        and place is not None
        and await _is_unfinished(topic, place, context.wall_ms())
    ):
        return {"isUnfinished": True}
    first, words = (LATEST, ()) if place is None else await first_of(topic, place)
    if holds.action is HoldAction.HOLD and not await operating.is_there(topic, name):
        await operating.create_subscription(context.topics, topic, name, first, {}, words)
    else:
        await operating.reset(operating.subscription_of(topic, name), first, words)
    return {}


async def _is_unfinished(topic: ServedTopic, place: ResetCursorData, now_ms: int) -> bool:
    """Whether the last entry before a place is a chunk whose message has not come to its end, and
    may still do so."""
    if not place.is_excluded or place.entry_id < 0:
        return False
    try:
        entry = await entry_at(topic, Position(place.ledger_id, place.entry_id))
        metadata, _ = split_payload(entry)
    except (NotThereError, MalformedPayloadError):
        return False  # Nothing that could be waited for.
    is_chunk = metadata.chunk_id + 1 < metadata.num_chunks_from_msg
    return is_chunk and now_ms - metadata.publish_time < _UNFINISHED_MS_MAX


async def _each(
    request: Request,
    topics: Mapping[str, T],
    work: Callable[[TopicName, T], Awaitable[object]],
) -> JSONResponse:
    """Do the work for each topic; what came of it, by the names that were given."""
    limit = asyncio.Semaphore(_AT_ONCE)
    found: dict[str, object] = {}
    elsewhere: dict[str, Answer] = {}
    refused: dict[str, Answer] = {}

    async def one(text: str, given: T) -> None:
        async with limit:
            try:
                found[text] = await work(naming.topic_of(text), given)
            except ElsewhereError as error:
                is_tls = request.url.scheme == "https"
                url = error.http_url_tls if is_tls else error.http_url
                if url:
                    elsewhere[text] = {"url": url, "authoritative": error.is_authoritative}
                else:
                    reason = "the broker to ask has registered no HTTP address"
                    refused[text] = {"status": 503, "reason": reason}
            except Exception as error:
                status = status_of(request, error)
                if status is None:
                    raise
                refused[text] = {"status": status, "reason": str(error)}

    await asyncio.gather(*(one(text, given) for text, given in topics.items()))
    return JSONResponse({"topics": found, "elsewhere": elsewhere, "refused": refused})
