"""Operations on many topics in one request, for clients that read thousands. Not in Pulsar's
interface.

The overhead of a request exceeds the work for most topics: a query over a thousand topics that asks
for each of them separately takes seconds. Each topic is answered separately: a refusal affects only
its topic, and rights are checked topic by topic. Other brokers are not asked: their topics are
returned in `elsewhere`, with the address to ask, as a redirect would name it.
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
"""Topics of a request that are handled concurrently."""

_UNFINISHED_MS_MAX = 60_000
"""Longest wait, in ms, for the rest of a message in chunks. Consumers wait as long by default."""

Check = Callable[[Request, Action, Resource], Awaitable[None]]
Answer = dict[str, Any]
T = TypeVar("T")


class TopicNames(RequestBody):
    """Full names of topics or partitions."""

    topics: list[str] = Field(max_length=TOPICS_MAX)


class StorageQuestion(TopicNames):
    """Request for the storage of topics, from a client that is about to read them."""

    read_hold_s: WholeNumber = Field(default=0, alias="readHoldS", ge=0, le=READ_HOLD_S_MAX)
    """Seconds for which the topics count as used, although their reader does not connect."""
    counts_messages: Flag = Field(default=False, alias="countsMessages")
    """Whether to count the messages of the last entry if nothing was published since the topic was
    loaded. A reader that limits messages has no other mean then."""


class TimeQuestion(TopicNames):
    """Request for the first message of each topic since a time."""

    time_ms: WholeNumber = Field(alias="timeMs")
    """Milliseconds since 1970."""


class HoldAction(StrEnum):
    """Operation on a subscription."""

    HOLD = "hold"
    """Create it, or move it if it exists."""
    MOVE = "move"
    """Move it if it exists."""
    DELETE = "delete"


class Holds(RequestBody):
    """One subscription in each of several topics."""

    subscription: str
    action: HoldAction
    topics: dict[str, ResetCursorData | None] = Field(max_length=TOPICS_MAX)
    """Position to continue at, by topic; null for a subscription to delete."""
    spares_unfinished: Flag = Field(default=False, alias="sparesUnfinished")
    """Whether to refuse a move over the beginning of a message in chunks whose end may still
    arrive."""


class _ManyTopics:
    """Routes for requests about many topics."""

    def __init__(self, context: HttpContext, check: Check) -> None:
        self._context = context
        self._check = check
        self._partitions_of = TopicWork(context).partitions

    async def internal_stats(self, request: Request, question: StorageQuestion) -> JSONResponse:
        """Return `internalStats` of each topic; for a partitioned topic, only its number of
        partitions. 404 also for a missing partition of an existing topic.

        With `readHoldS`, the topics count as used for that time, and are not deleted as inactive.
        With `countsMessages`, topics whose counters are 0 have `lastEntryMessages`.
        """

        async def one(name: TopicName) -> Answer:
            await self._check(request, Action.LOOKUP, Topic(name))
            await self._context.topics.check_namespace(name.namespace_name)
            # A topic that is served exists and is not partitioned; most are.
            if self._context.topics.served(name) is None:
                every = await self._partitions_of(name) if name.partition_index < 0 else None
                if every is not None:
                    return {"partitions": len(every)}
                await self._context.check_owner(name)
                # A client's use would create a missing partition. A reader does not create it: the
                # answer tells it that the data is gone.
                if not await self._context.topics.exists(name):
                    raise TopicNotFoundError(f"Topic {name} not found")
            there = await self._context.served(name)
            if question.read_hold_s:
                there.use.hold_for_reading(question.read_hold_s)
            stats = topic_internal_stats(there)
            if question.counts_messages and not stats["entriesAddedCounter"]:
                # A mean for the reader; without it, an entry counts as one message.
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
        """Return a list for each topic: its newest schema, or all versions; empty if it has
        none."""

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
        """Return the first message of each topic since a time; the position after the last message
        if all are older."""

        async def one(name: TopicName) -> Answer:
            await self._check(request, Action.CONSUME, Topic(name))
            await self._context.topics.check_namespace(name.namespace_name)
            position = await first_at(await self._context.served(name), question.time_ms)
            return {"ledgerId": position.ledger_id, "entryId": position.entry_id}

        return await _each(request, dict.fromkeys(question.topics), lambda name, _: one(name))

    async def subscriptions(self, request: Request, holds: Holds) -> JSONResponse:
        """Create, move or delete the subscription with one name in each topic."""

        async def one(name: TopicName, place: ResetCursorData | None) -> Answer:
            await self._check(request, Action.CONSUME, Subscription(name, holds.subscription))
            await self._context.topics.check_namespace(name.namespace_name)
            there = await _served(self._context, name, creates=holds.action is HoldAction.HOLD)
            return await _hold(self._context, there, holds, place)

        return await _each(request, holds.topics, one)


def many_topics_router(context: HttpContext, check: Check) -> APIRouter:
    """Return the routes below /magnetar/v1/topics. `check` refuses a role without the right."""
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
    """Whether the last entry before a position is a chunk whose message is incomplete and may still
    be completed."""
    if not place.is_excluded or place.entry_id < 0:
        return False
    try:
        entry = await entry_at(topic, Position(place.ledger_id, place.entry_id))
        metadata, _ = split_payload(entry)
    except (NotThereError, MalformedPayloadError):
        return False  # Nothing that will be completed.
    is_chunk = metadata.chunk_id + 1 < metadata.num_chunks_from_msg
    return is_chunk and now_ms - metadata.publish_time < _UNFINISHED_MS_MAX


async def _each(
    request: Request,
    topics: Mapping[str, T],
    work: Callable[[TopicName, T], Awaitable[object]],
) -> JSONResponse:
    """Run `work` for each topic, and return the results by the given names."""
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
