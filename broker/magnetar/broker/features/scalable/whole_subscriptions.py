"""Subscriptions of a whole scalable topic: made, deleted and moved in all its segments.

A pending change of the layout is finished first. A change that begins meanwhile makes segments that
were not reached, and may carry a subscription to them. So the work is repeated until the layout is
the same before and after. A deleted subscription therefore does not come back by a split.

A subscription that moves back on a sealed segment holds back the descendants. Its coordinator takes
them from stream consumers before anything moves, and checks anew what is drained afterwards. The
hold is stored in the topic's record first, so a coordinator that begins meanwhile, on any broker,
finds it there. Then the running coordinator is notified. The end of the hold is in the record as
well. If the broker that seeks dies, coordinators give the hold up after some time.

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
"""Most repetitions of work in all segments because the layout has changed meanwhile."""


class WholeSubscriptions:
    """Applies operations on subscriptions to the owners of all segments; stateless."""

    def __init__(self, topics: ScalableTopics) -> None:
        self._topics = topics

    async def subscribe(self, topic: TopicName, subscription: str) -> None:
        """Create a subscription at the present end of all active segments; an existing one stays.

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
        """Delete a subscription of all segments.

        A pending change is finished first. One that begins meanwhile may carry the subscription to
        its children; these are reached by the repetition.

        Raises:
            TopicNotFoundError, SubscriptionNotFoundError
            RequestError: it is not deleted everywhere; call again.
        """
        has_found = False
        for _ in range(_LAYOUTS_TRIED):
            record = await self._without_change(topic)
            unsubscribe = partial(self._topics.reached_owners.unsubscribe, is_forced=is_forced)
            # Parents first: the source of a split's copies is gone before their destination.
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
        """Move a subscription, in all segments, to what was published at or after a time; None: to
        their ends. Stream consumers get the segments anew, parents before children.

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
        """Hold back descendants while a subscription seeks in one segment, if that segment is
        sealed.

        Raises:
            RequestError: the hold cannot be placed now; nothing must move.
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
        """Hold back the descendants of a segment, or of all if None. That includes segments that a
        concurrent split seals."""
        owners = self._topics.reached_owners
        hold_id, created_ms = await self._topics.begin_hold(topic, subscription, only)
        try:
            await owners.hold_back(topic, subscription)
            yield
        finally:
            try:
                await self._topics.end_hold(topic, hold_id, created_ms)
            except RequestError as error:  # It is given up after a while.
                _log.warning("segments_held_back", topic=str(topic), error=str(error))

    async def _without_change(self, topic: TopicName) -> ScalableTopicRecord:
        """Return the record, once no change is under way.

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
    """Run all concurrently; raise the first error when all have ended."""
    results = await asyncio.gather(*works, return_exceptions=True)
    for result in results:
        if isinstance(result, BaseException):
            raise result
    return [result is True for result in results]
