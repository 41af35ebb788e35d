"""Subscriptions and kept data over HTTP. Source: HTTP sheet, sections 9.1 (trim, truncate) and 9.3.

Every call is for the broker that serves the topic; others send it there. The subscriptions of
non-persistent topics keep no place: what moves one is refused with 405.
"""

from typing import Annotated

from fastapi import APIRouter, Body, Response
from pydantic import BaseModel, ConfigDict, Field

from magnetar.broker.entry import messages_of
from magnetar.broker.errors import BrokerPersistenceError, TopicNotFoundError
from magnetar.broker.http.context import HttpContext
from magnetar.broker.http.refusals import HttpRefusal
from magnetar.broker.keeping import operating
from magnetar.broker.keeping.composition import Keeping
from magnetar.broker.subscription import Subscription
from magnetar.broker.topic import Topic
from magnetar.cursors import Cursor, words_from_bits
from magnetar.ledger.errors import LedgerError
from magnetar.ledger.position import LATEST, Position

_PERSISTENT = "/admin/v2/persistent/{tenant}/{namespace}/{topic}"
_NON_PERSISTENT = "/admin/v2/non-persistent/{tenant}/{namespace}/{topic}"
_SUBSCRIPTION = "/subscription/{sub:path}"
_NO_RANGE = (1 << 63) - 1


class ResetCursorData(BaseModel):
    """A place in a topic, and whether it is still to be delivered."""

    model_config = ConfigDict(extra="ignore")

    ledger_id: int = Field(alias="ledgerId", ge=-1, le=_NO_RANGE)
    entry_id: int = Field(alias="entryId", ge=-1, le=_NO_RANGE)
    batch_index: int = Field(default=-1, alias="batchIndex", ge=-1)
    is_excluded: bool = Field(default=False, alias="isExcluded")
    properties: dict[str, str] | None = None


Place = Annotated[ResetCursorData | None, Body()]


def subscriptions_router(context: HttpContext, keeping: Keeping) -> APIRouter:
    """The routes below a topic that are about its subscriptions and its data."""
    router = APIRouter(tags=["subscriptions"])

    async def served(tenant: str, namespace: str, topic: str) -> Topic:
        return await context.served(await context.topic("persistent", tenant, namespace, topic))

    async def found(
        tenant: str, namespace: str, topic: str, sub: str
    ) -> tuple[Topic, Subscription]:
        there = await served(tenant, namespace, topic)
        return there, operating.subscription_of(there, sub)

    @router.get(_PERSISTENT + "/subscriptions")
    async def subscriptions(tenant: str, namespace: str, topic: str) -> list[str]:
        """Names of the subscriptions, readers included."""
        there = await served(tenant, namespace, topic)
        return sorted(name for name, each in there.subscriptions.items() if each.is_open)

    @router.post(_PERSISTENT + _SUBSCRIPTION + "/skip_all", status_code=204)
    async def skip_all(tenant: str, namespace: str, topic: str, sub: str) -> Response:
        """Forget the whole backlog; consumers are disconnected, and come back."""
        _, subscription = await found(tenant, namespace, topic, sub)
        await operating.skip_all(subscription)
        return _done()

    @router.post(_PERSISTENT + _SUBSCRIPTION + "/skip/{count}", status_code=204)
    async def skip(tenant: str, namespace: str, topic: str, sub: str, count: int) -> Response:
        """Forget the oldest entries of the backlog."""
        if count < 0:
            raise HttpRefusal(412, f"{count} messages cannot be skipped")
        there, subscription = await found(tenant, namespace, topic, sub)
        await operating.skip(there, subscription, count)
        return _done()

    @router.post(_PERSISTENT + _SUBSCRIPTION + "/expireMessages/{seconds}", status_code=204)
    async def expire(tenant: str, namespace: str, topic: str, sub: str, seconds: int) -> Response:
        """Forget what is older. 409: that is being done already."""
        there, subscription = await found(tenant, namespace, topic, sub)
        await _expire(keeping, there, [subscription], seconds)
        return _done()

    @router.post(_PERSISTENT + "/all_subscription/expireMessages/{seconds}", status_code=204)
    async def expire_all(tenant: str, namespace: str, topic: str, seconds: int) -> Response:
        """The same for all subscriptions of a topic."""
        there = await served(tenant, namespace, topic)
        durable = [each for each in there.subscriptions.values() if each.is_durable]
        await _expire(keeping, there, durable, seconds)
        return _done()

    @router.post(_PERSISTENT + _SUBSCRIPTION + "/expireMessages", status_code=204)
    async def expire_through(
        tenant: str, namespace: str, topic: str, sub: str, place: ResetCursorData
    ) -> Response:
        """Forget everything through a message, or before it if it is excluded."""
        there, subscription = await found(tenant, namespace, topic, sub)
        through = Position(place.ledger_id, place.entry_id - place.is_excluded)
        keeping.expiry.expire_through(there, [subscription], min(through, there.log.last_confirmed))
        await operating.persist(subscription)
        return _done()

    @router.post(_PERSISTENT + _SUBSCRIPTION + "/resetcursor/{timestamp}", status_code=204)
    async def reset_to_time(
        tenant: str, namespace: str, topic: str, sub: str, timestamp: int
    ) -> Response:
        """Go on at what was published at or after a time, ms since 1970."""
        there, subscription = await found(tenant, namespace, topic, sub)
        await operating.reset_to_time(there, subscription, timestamp)
        return _done()

    @router.post(_PERSISTENT + _SUBSCRIPTION + "/resetcursor", status_code=204)
    async def reset(
        tenant: str, namespace: str, topic: str, sub: str, place: ResetCursorData
    ) -> Response:
        """Go on at a message, or behind it if it is excluded."""
        there, subscription = await found(tenant, namespace, topic, sub)
        await operating.reset(subscription, *await _first_of(there, place))
        return _done()

    @router.get(_PERSISTENT + _SUBSCRIPTION + "/properties")
    async def properties(tenant: str, namespace: str, topic: str, sub: str) -> dict[str, str]:
        """The subscription's properties."""
        _, subscription = await found(tenant, namespace, topic, sub)
        cursor = subscription.cursor
        return dict(cursor.properties) if isinstance(cursor, Cursor) else {}

    @router.put(_PERSISTENT + _SUBSCRIPTION + "/properties", status_code=204)
    async def set_properties(
        tenant: str, namespace: str, topic: str, sub: str, values: dict[str, str]
    ) -> Response:
        """Replace the subscription's properties."""
        _, subscription = await found(tenant, namespace, topic, sub)
        await operating.set_properties(subscription, values)
        return _done()

    @router.put(_PERSISTENT + _SUBSCRIPTION, status_code=204)
    async def create(
        tenant: str, namespace: str, topic: str, sub: str, place: Place = None
    ) -> Response:
        """Make a subscription, at the end if nothing else is said. 409: it exists."""
        name = await context.topic("persistent", tenant, namespace, topic)
        try:
            there = await context.served(name)
        except TopicNotFoundError:
            there = await context.topics.get(name)  # if its namespace lets topics appear
        if sub in there.subscriptions or sub in there.internal_cursors:
            raise HttpRefusal(409, f"Subscription {sub} of {name} already exists")
        first, words = (LATEST, ()) if place is None else await _first_of(there, place)
        values = (place.properties if place is not None else None) or {}
        await operating.create_subscription(context.topics, there, sub, first, values, words)
        return _done()

    @router.delete(_PERSISTENT + _SUBSCRIPTION, status_code=204)
    async def delete(
        tenant: str, namespace: str, topic: str, sub: str, force: bool = False
    ) -> Response:
        """Delete a subscription. 412: it has consumers, and is not to be deleted by force."""
        there, subscription = await found(tenant, namespace, topic, sub)
        await there.delete_subscription(subscription, is_forced=force)
        return _done()

    @router.post(_PERSISTENT + "/trim", status_code=204)
    async def trim(tenant: str, namespace: str, topic: str) -> Response:
        """Have what is consumed and not to be retained go at once."""
        await operating.trim(await served(tenant, namespace, topic))
        return _done()

    @router.delete(_PERSISTENT + "/truncate", status_code=204)
    async def truncate(tenant: str, namespace: str, topic: str) -> Response:
        """Forget all backlogs, and delete the data."""
        await operating.truncate(await served(tenant, namespace, topic))
        return _done()

    @router.post(_NON_PERSISTENT + _SUBSCRIPTION, include_in_schema=False)
    async def nothing_to_move(tenant: str, namespace: str, topic: str, sub: str) -> None:
        raise HttpRefusal(405, "subscriptions of non-persistent topics keep no place")

    @router.put(_NON_PERSISTENT + _SUBSCRIPTION, include_in_schema=False)
    async def nothing_to_make(tenant: str, namespace: str, topic: str, sub: str) -> None:
        raise HttpRefusal(400, "subscriptions of non-persistent topics come with their consumers")

    @router.delete(_NON_PERSISTENT + "/truncate", include_in_schema=False)
    async def nothing_to_delete(tenant: str, namespace: str, topic: str) -> None:
        raise HttpRefusal(412, "a non-persistent topic keeps no data")

    return router


def _done() -> Response:
    return Response(status_code=204)


async def _expire(
    keeping: Keeping, topic: Topic, subscriptions: list[Subscription], age_s: int
) -> None:
    """
    Raises:
        HttpRefusal: 409, 412.
        BrokerPersistenceError
    """
    if age_s <= 0:
        raise HttpRefusal(412, f"{age_s} s is no age of messages")
    if keeping.expiry.is_running(topic):
        raise HttpRefusal(409, f"messages of {topic.name} are being expired already")
    try:
        await keeping.expiry.expire(topic, subscriptions, age_s=age_s)
    except LedgerError as error:
        raise BrokerPersistenceError(
            f"{topic.name}: what is older cannot be found now: {error}"
        ) from error
    for subscription in subscriptions:
        await operating.persist(subscription)


async def _first_of(topic: Topic, place: ResetCursorData) -> tuple[Position, tuple[int, ...]]:
    """The first entry to deliver, and the ack_set words of its messages that are passed.

    Raises:
        BrokerPersistenceError: the batch cannot be read.
    """
    position = Position(place.ledger_id, place.entry_id)
    index = place.batch_index
    if index < 0:
        if place.is_excluded and position < LATEST:
            position = topic.log.next_position(position)
        return position, ()
    try:
        first, entries = await topic.log.read_range(position, entries_max=1, bytes_max=1)
    except LedgerError as error:
        raise BrokerPersistenceError(f"{topic.name}: {position} cannot be read: {error}") from error
    if first != position or not entries:
        return position, ()
    messages = messages_of(entries[0])
    passed = index + place.is_excluded
    if passed >= messages:
        return topic.log.next_position(position), ()
    return position, words_from_bits((1 << messages) - (1 << passed)) if passed else ()
