"""Subscriptions of a whole scalable topic: made, deleted and moved in all its segments.

A change of the layout that is under way ends first. One that begins meanwhile makes segments that
were not reached, and may carry a subscription to them: what was done is done again until the layout
is the same before and after. So a subscription that is deleted does not come back by a split.

A subscription that goes back on a sealed segment holds back what came of it: its coordinator takes
the children from stream consumers before anything moves, and looks anew at what is drained after.
The hold is in the topic's record first, so a coordinator that begins meanwhile, on any broker,
finds it there. Then the one that is there is told. The end of the hold is in the record as well;
if the broker that seeks dies, coordinators give the hold up after some time.

Source: sheet of Pulsar 5, sections 4 and 8.4 (S15).
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Iterable
from contextlib import asynccontextmanager
from functools import partial

import structlog

from magnetar.broker.base.errors import ConflictError, RequestError, SubscriptionNotFoundError
from magnetar.broker.features.scalable.record import ScalableTopicRecord
from magnetar.broker.features.scalable.scalable_topics import ScalableTopics
from magnetar.sdk.wire import TopicName

_log = structlog.get_logger()

_LAYOUTS_TRIED = 10
"""Times that what is done in all segments is done again because there are others meanwhile."""


class WholeSubscriptions:
    """Asks the owners of segments; remembers nothing."""

    def __init__(self, topics: ScalableTopics) -> None:
        self._topics = topics

    async def subscribe(self, topic: TopicName, subscription: str) -> None:
        """Have a subscription at the present end of all active segments; where it is, it stays.

        Raises:
            TopicNotFoundError
            RequestError: not everywhere; call again.
        """
        for _ in range(_LAYOUTS_TRIED):
            record = await self._without_change(topic)
            subscribe = self._topics.reached_owners.subscribe
            names = [each.name_in(topic) for each in record.active]
            for result in await asyncio.gather(
                *(subscribe(each, subscription) for each in names), return_exceptions=True
            ):
                if isinstance(result, BaseException):
                    raise result  # All have been tried.
            if await self._is_current_layout(topic, record):
                return
        raise ConflictError(f"the layout of {topic} changes too often now: try again")

    async def unsubscribe(self, topic: TopicName, subscription: str, *, is_forced: bool) -> None:
        """Delete a subscription of all segments. A change that is under way ends first; one that
        begins meanwhile may carry the subscription to its children, which are looked at then.

        Raises:
            TopicNotFoundError, SubscriptionNotFoundError
            RequestError: it is not deleted everywhere; call again.
        """
        has_found = False
        for _ in range(_LAYOUTS_TRIED):
            record = await self._without_change(topic)
            unsubscribe = partial(self._topics.reached_owners.unsubscribe, is_forced=is_forced)
            # Parents first: what a split copies from is gone before what it copies to.
            for segments in (record.sealed, record.active):
                names = [each.name_in(topic) for each in segments]
                has_found |= any(await _all(unsubscribe(each, subscription) for each in names))
            if await self._is_current_layout(topic, record):
                break
        else:
            raise ConflictError(f"the layout of {topic} changes too often now: try again")
        if not has_found:
            raise SubscriptionNotFoundError(f"Subscription {subscription} of {topic} not found")
        _log.info("subscription_deleted", topic=str(topic), subscription=subscription)

    async def seek(self, topic: TopicName, subscription: str, publish_ms: int | None) -> None:
        """Have a subscription go on, in all segments, at what was published at or after a time;
        None: at their ends. Stream consumers are given the segments anew, parents before children.

        Raises:
            TopicNotFoundError, SubscriptionNotFoundError
            RequestError: not everywhere; call again.
        """
        has_found = False
        for _ in range(_LAYOUTS_TRIED):
            record = await self._without_change(topic)
            async with self._held_back(topic, subscription):
                names = [each.name_in(topic) for each in record.segments]
                seek = self._topics.reached_owners.seek
                moved = await _all(seek(each, subscription, publish_ms) for each in names)
                has_found |= any(moved)
            if await self._is_current_layout(topic, record):
                break
        else:
            raise ConflictError(f"the layout of {topic} changes too often now: try again")
        if not has_found:
            raise SubscriptionNotFoundError(f"Subscription {subscription} of {topic} not found")
        _log.info("subscription_moved", topic=str(topic), subscription=subscription)

    @asynccontextmanager
    async def rewinding(self, segment: TopicName, subscription: str) -> AsyncIterator[None]:
        """While a subscription seeks in one segment: if that is sealed, what came of it waits.

        Raises:
            RequestError: that cannot be had now; nothing must move.
        """
        topic = segment.partitioned
        record = await self._topics.find(topic)
        found = record.find_named(topic, segment) if record is not None else None
        if record is None or found is None or not found.is_sealed:
            yield
            return
        async with self._held_back(topic, subscription, only=found.id):
            yield

    @asynccontextmanager
    async def _held_back(
        self, topic: TopicName, subscription: str, *, only: int | None = None
    ) -> AsyncIterator[None]:
        """Hold back what came of a segment, None: of all, those included that a split which goes on
        meanwhile seals."""
        owners = self._topics.reached_owners
        hold_id, created_ms = await self._topics.begin_hold(topic, subscription, only)
        try:
            await owners.hold_back(topic, subscription)
            yield
        finally:
            try:
                await self._topics.end_hold(topic, hold_id, created_ms)
            except RequestError as error:  # It ends by itself in a while.
                _log.warning("segments_held_back", topic=str(topic), error=str(error))

    async def _without_change(self, topic: TopicName) -> ScalableTopicRecord:
        """The record, once no change is under way.

        Raises:
            TopicNotFoundError, RequestError
        """
        record = await self._topics.get(topic)
        if record.change is not None:
            await self._topics.finish(topic)
            record = await self._topics.get(topic)
        return record

    async def _is_current_layout(self, topic: TopicName, record: ScalableTopicRecord) -> bool:
        now = await self._topics.get(topic)
        return (now.epoch, now.change, now.created_ms) == (record.epoch, None, record.created_ms)


async def _all(works: Iterable[Awaitable[bool]]) -> list[bool]:
    """All of them side by side; the first that failed is told when all have ended."""
    results = await asyncio.gather(*works, return_exceptions=True)
    for result in results:
        if isinstance(result, BaseException):
            raise result
    return [result is True for result in results]
