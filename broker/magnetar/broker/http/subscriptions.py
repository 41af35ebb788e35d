"""Subscriptions and stored data over HTTP. Source: HTTP sheet, sections 9.1 (trim, truncate) and
9.3.

The owner of a topic carries out each request; other brokers redirect to it. For a partitioned
topic, the owner of each partition carries it out. A request that names a message of one partition
is refused with 405. So is a request that moves a subscription of a non-persistent topic, which has
no position.
"""

from typing import Annotated
from urllib.parse import quote

from fastapi import APIRouter, Body, Response
from pydantic import BaseModel, Field, JsonValue

from magnetar.broker.base import naming
from magnetar.broker.base.entry import messages_of
from magnetar.broker.base.errors import BrokerPersistenceError
from magnetar.broker.base.json_values import Flag, WholeNumber
from magnetar.broker.features.retention.expiry import Expirable, expiring
from magnetar.broker.http.bodies import RequestBody, noted
from magnetar.broker.http.context import HttpContext
from magnetar.broker.http.fan_out import TopicWork
from magnetar.broker.http.late_routes import late_router
from magnetar.broker.http.refusals import HttpRefusal
from magnetar.broker.topic import Topic
from magnetar.broker.topic.subscription import Subscription
from magnetar.broker.topics import operating
from magnetar.broker.topics.inspecting import BacklogCount, count_backlog
from magnetar.broker.topics.upkeep import Keeping
from magnetar.cursors import Cursor, words_from_bits
from magnetar.ledger.errors import LedgerError
from magnetar.ledger.position import LATEST, Position
from magnetar.sdk.wire import TopicName

_PERSISTENT = "/admin/v2/persistent/{tenant}/{namespace}/{topic}"
_SUBSCRIPTION = "/subscription/{sub:path}"
_NO_RANGE = (1 << 63) - 1


class ResetCursorData(RequestBody):
    """A position in a topic, and whether the message there is excluded."""

    ledger_id: WholeNumber = Field(alias="ledgerId", ge=-1, le=_NO_RANGE)
    entry_id: WholeNumber = Field(alias="entryId", ge=-1, le=_NO_RANGE)
    batch_index: WholeNumber = Field(default=-1, alias="batchIndex", ge=-1)
    is_excluded: Flag = Field(default=False, alias="isExcluded")
    properties: dict[str, str] | None = None


class BacklogAnalysis(BaseModel):
    """Contents of a backlog. There are no filters, so all entries are accepted."""

    entries: int
    messages: int
    markerMessages: int
    filterRejectedEntries: int = 0
    filterAcceptedEntries: int
    filterRescheduledEntries: int = 0
    filterRejectedMessages: int = 0
    filterAcceptedMessages: int
    filterRescheduledMessages: int = 0
    aborted: bool
    """Whether the backlog has more entries than were read."""
    firstMessageId: str | None = None
    lastMessageId: str | None = None

    @classmethod
    def of(cls, count: BacklogCount, topic: Topic) -> "BacklogAnalysis":
        def name(position: Position | None) -> str | None:
            if position is None:
                return None
            return f"{position.ledger_id}:{position.entry_id}:{topic.name.partition_index}"

        return cls(
            entries=count.entries,
            messages=count.messages,
            markerMessages=count.markers,
            filterAcceptedEntries=count.entries,
            filterAcceptedMessages=count.messages,
            aborted=count.is_cut,
            firstMessageId=name(count.first),
            lastMessageId=name(count.last),
        )


Place = Annotated[ResetCursorData | None, Body()]


class _Subscriptions:
    """Routes of the subscriptions and the data of a topic."""

    def __init__(self, context: HttpContext, keeping: Keeping) -> None:
        self._context = context
        self._keeping = keeping
        work_on = TopicWork(context)
        self._each, self._single = work_on.each, work_on.single

    async def _persistent(self, tenant: str, namespace: str, topic: str) -> TopicName:
        return await self._context.topic("persistent", tenant, namespace, topic)

    async def subscriptions(self, tenant: str, namespace: str, topic: str) -> list[str]:
        """Return the names of the subscriptions, readers included."""

        async def names(there: Topic) -> list[str]:
            return [name for name, each in there.subscriptions.items() if each.is_open]

        name = await self._persistent(tenant, namespace, topic)
        found = await self._each(name, "GET", "subscriptions", names)
        return sorted({str(one) for some in found if isinstance(some, list) for one in some})

    async def skip_all(self, tenant: str, namespace: str, topic: str, sub: str) -> Response:
        """Clear the whole backlog; consumers are disconnected, and reconnect."""

        async def work(there: Topic) -> None:
            await operating.skip_all(there, operating.backlog_of(there, sub))

        name = await self._persistent(tenant, namespace, topic)
        await self._each(name, "POST", _action(sub, "skip_all"), work)
        return _dropped(sub)

    async def skip(self, tenant: str, namespace: str, topic: str, sub: str, count: int) -> Response:
        """Skip the oldest entries of the backlog."""
        if count < 0:
            raise HttpRefusal(412, f"{count} messages cannot be skipped")
        there = await self._single(tenant, namespace, topic, "skipping so many messages")
        await operating.skip(there, operating.backlog_of(there, sub), count)
        return _dropped(sub)

    async def skip_unreadable(
        self, tenant: str, namespace: str, topic: str, sub: str
    ) -> dict[str, int]:
        """Skip exactly the unreadable entries at which the subscription is stuck: no bookie can
        serve them."""
        there = await self._single(tenant, namespace, topic, "skipping what cannot be read")
        found = operating.subscription_of(there, sub)
        return {"skipped": await operating.skip_unreadable(there, found)}

    async def expire(
        self, tenant: str, namespace: str, topic: str, sub: str, seconds: int
    ) -> Response:
        """Expire messages older than the given seconds. 409 if messages of the topic are already
        being expired."""

        async def work(there: Topic) -> None:
            await _expire(self._keeping, there, [operating.backlog_of(there, sub)], seconds)

        name = await self._persistent(tenant, namespace, topic)
        await self._each(name, "POST", _action(sub, f"expireMessages/{seconds}"), work)
        return _dropped(sub)

    async def expire_all(self, tenant: str, namespace: str, topic: str, seconds: int) -> Response:
        """Expire messages of all durable subscriptions of a topic; and of copies to other clusters,
        if these may expire."""

        async def work(there: Topic) -> None:
            known = expiring(there)
            durable = [
                each
                for each in known
                if each.is_open and (not isinstance(each, Subscription) or each.is_durable)
            ]
            await _expire(self._keeping, there, durable, seconds)

        name = await self._persistent(tenant, namespace, topic)
        await self._each(name, "POST", f"all_subscription/expireMessages/{seconds}", work)
        return _done()

    async def expire_through(
        self, tenant: str, namespace: str, topic: str, sub: str, place: ResetCursorData
    ) -> Response:
        """Expire all messages up to the given one, which itself stays if it is excluded."""
        there = await self._single(tenant, namespace, topic, "expiring up to a message")
        subscription = operating.backlog_of(there, sub)
        through = Position(place.ledger_id, place.entry_id - place.is_excluded)
        self._keeping.expiry.expire_through(
            there, [subscription], min(through, there.log.last_confirmed)
        )
        await operating.persist(subscription)
        return _dropped(sub)

    async def reset_to_time(
        self, tenant: str, namespace: str, topic: str, sub: str, timestamp: int
    ) -> Response:
        """Move the subscription to the first message published at or after a time, in ms since
        1970."""

        async def work(there: Topic) -> None:
            operating.check_subscription_alone(there, sub)
            subscription = operating.subscription_of(there, sub)
            await operating.reset_to_time(there, subscription, timestamp)

        name = await self._persistent(tenant, namespace, topic)
        await self._each(name, "POST", _action(sub, f"resetcursor/{timestamp}"), work)
        return _done()

    async def reset(
        self, tenant: str, namespace: str, topic: str, sub: str, place: ResetCursorData
    ) -> Response:
        """Move the subscription to a message, or behind it if it is excluded."""
        there = await self._single(tenant, namespace, topic, "a reset to a message")
        operating.check_subscription_alone(there, sub)
        subscription = operating.subscription_of(there, sub)
        await operating.reset(subscription, *await first_of(there, place))
        return _done()

    async def properties(self, tenant: str, namespace: str, topic: str, sub: str) -> JsonValue:
        """Return the subscription's properties; for a partitioned topic, those of its first
        partition."""

        async def work(there: Topic) -> JsonValue:
            cursor = operating.subscription_of(there, sub).cursor
            return dict(cursor.properties) if isinstance(cursor, Cursor) else {}

        name = await self._persistent(tenant, namespace, topic)
        return (await self._each(name, "GET", _action(sub, "properties"), work))[0]

    async def set_properties(
        self, tenant: str, namespace: str, topic: str, sub: str, values: dict[str, str]
    ) -> Response:
        """Replace the subscription's properties."""

        async def work(there: Topic) -> None:
            await operating.set_properties(operating.subscription_of(there, sub), values)

        name = await self._persistent(tenant, namespace, topic)
        await self._each(name, "PUT", _action(sub, "properties"), work, dict(values))
        return _done()

    async def create(
        self,
        tenant: str,
        namespace: str,
        topic: str,
        sub: str,
        place: Place = None,
        replicated: bool = False,
    ) -> Response:
        """Create a subscription, at the end by default. 409 if it exists in every partition. If it
        exists in some partitions only, an earlier attempt is completed."""

        async def work(there: Topic) -> None:
            if sub in there.subscriptions or sub in there.internal_cursors:
                raise HttpRefusal(409, f"Subscription {sub} of {there.name} already exists")
            first, words = (LATEST, ()) if place is None else await first_of(there, place)
            values = (place.properties if place is not None else None) or {}
            await operating.create_subscription(
                self._context.topics,
                there,
                sub,
                first,
                values,
                words,
                is_replicated=replicated
                and self._context.settings.replicated_subscriptions_enabled,
            )

        name = await self._persistent(tenant, namespace, topic)
        body = place.model_dump(by_alias=True) if place is not None else None
        action = _action(sub) + ("?replicated=true" if replicated else "")
        await self._each(name, "PUT", action, work, body, creates=True)
        return _done()

    async def delete(
        self, tenant: str, namespace: str, topic: str, sub: str, force: bool = False
    ) -> Response:
        """Delete a subscription. 412 if it has consumers and `force` is not set."""

        async def work(there: Topic) -> None:
            operating.check_subscription_alone(there, sub)
            subscription = operating.subscription_of(there, sub)
            await there.subscriptions.delete(subscription, is_forced=force)

        name = await self._persistent(tenant, namespace, topic)
        action = _action(sub) + ("?force=true" if force else "")
        await self._each(name, "DELETE", action, work)
        return _done()

    async def trim(self, tenant: str, namespace: str, topic: str) -> Response:
        """Delete ledgers that are consumed and need not be retained, at once."""
        name = await self._persistent(tenant, namespace, topic)
        await self._each(name, "POST", "trim", operating.trim)
        return _done()

    async def truncate(self, tenant: str, namespace: str, topic: str) -> Response:
        """Clear all backlogs, and delete the data."""
        name = await self._persistent(tenant, namespace, topic)
        await self._each(name, "DELETE", "truncate", operating.truncate)
        return _done()

    async def analyze(
        self, tenant: str, namespace: str, topic: str, sub: str, place: Place = None
    ) -> BacklogAnalysis:
        """Read and count what a subscription has not acknowledged, from a message on, if one is
        given.

        The count stops after `backlog_analysis_entries_max` entries, and the answer says so.
        """
        there = await self._single(tenant, namespace, topic, "the analysis of a backlog")
        subscription = operating.subscription_of(there, sub)
        first = Position(place.ledger_id, place.entry_id + place.is_excluded) if place else None
        limit = self._context.settings.backlog_analysis_entries_max
        return BacklogAnalysis.of(await count_backlog(there, subscription, first, limit), there)

    async def replicated(
        self, tenant: str, namespace: str, topic: str, sub: str
    ) -> dict[str, bool]:
        """Return whether a subscription is replicated, by topic or partition."""

        async def work(there: Topic) -> dict[str, bool]:
            return {str(there.name): operating.subscription_of(there, sub).is_replicated}

        name = await self._persistent(tenant, namespace, topic)
        action = _action(sub, "replicatedSubscriptionStatus")
        found = await self._each(name, "GET", action, work)
        return {
            str(key): bool(value)
            for one in found
            if isinstance(one, dict)
            for key, value in one.items()
        }

    async def set_replicated(
        self,
        tenant: str,
        namespace: str,
        topic: str,
        sub: str,
        enabled: Annotated[Flag, Body()],
    ) -> Response:
        """Start or stop the replication of a subscription to other clusters. 412 if the setting of
        this broker turns that off."""
        if enabled and not self._context.settings.replicated_subscriptions_enabled:
            raise HttpRefusal(412, "replicated_subscriptions_enabled of this broker is off")

        async def work(there: Topic) -> None:
            await operating.subscription_of(there, sub).set_replicated(enabled)

        name = await self._persistent(tenant, namespace, topic)
        action = _action(sub, "replicatedSubscriptionStatus")
        await self._each(name, "POST", action, work, enabled)
        return _done()


def subscriptions_router(context: HttpContext, keeping: Keeping) -> APIRouter:
    """Return the routes below a topic for its subscriptions and its data."""
    router = late_router(tags=["subscriptions"])
    routes = _Subscriptions(context, keeping)
    router.get(_PERSISTENT + "/subscriptions")(routes.subscriptions)
    router.post(_PERSISTENT + _SUBSCRIPTION + "/skip_all", status_code=204)(routes.skip_all)
    router.post(_PERSISTENT + _SUBSCRIPTION + "/skip/{count}", status_code=204)(routes.skip)
    router.post(_PERSISTENT + _SUBSCRIPTION + "/skipUnreadable")(routes.skip_unreadable)
    router.post(_PERSISTENT + _SUBSCRIPTION + "/expireMessages/{seconds}", status_code=204)(
        routes.expire
    )
    router.post(_PERSISTENT + "/all_subscription/expireMessages/{seconds}", status_code=204)(
        routes.expire_all
    )
    router.post(_PERSISTENT + _SUBSCRIPTION + "/expireMessages", status_code=204)(
        routes.expire_through
    )
    router.post(_PERSISTENT + _SUBSCRIPTION + "/resetcursor/{timestamp}", status_code=204)(
        routes.reset_to_time
    )
    router.post(_PERSISTENT + _SUBSCRIPTION + "/resetcursor", status_code=204)(routes.reset)
    router.get(_PERSISTENT + _SUBSCRIPTION + "/properties")(routes.properties)
    router.put(_PERSISTENT + _SUBSCRIPTION + "/properties", status_code=204)(routes.set_properties)
    router.put(_PERSISTENT + _SUBSCRIPTION, status_code=204)(routes.create)
    router.delete(_PERSISTENT + _SUBSCRIPTION, status_code=204)(routes.delete)
    router.post(_PERSISTENT + "/trim", status_code=204)(routes.trim)
    router.delete(_PERSISTENT + "/truncate", status_code=204)(routes.truncate)
    router.post(_PERSISTENT + _SUBSCRIPTION + "/analyzeBacklog")(routes.analyze)
    router.get(_PERSISTENT + _SUBSCRIPTION + "/replicatedSubscriptionStatus")(routes.replicated)
    router.post(_PERSISTENT + _SUBSCRIPTION + "/replicatedSubscriptionStatus", status_code=204)(
        routes.set_replicated
    )
    return router


def _action(subscription: str, what: str = "") -> str:
    """Return the part of a path after the topic."""
    path = f"subscription/{quote(subscription, safe='')}"
    return f"{path}/{what}" if what else path


def _done() -> Response:
    return Response(status_code=204)


def _dropped(subscription: str) -> Response:
    """Return 204; for copies to another cluster, with a note on the consequence."""
    if not subscription.startswith(naming.REPLICATOR_PREFIX):
        return _done()
    cluster = subscription.removeprefix(naming.REPLICATOR_PREFIX)
    return noted(f"what was dropped is not copied to cluster {cluster} any more")


async def _expire(
    keeping: Keeping, topic: Topic, subscriptions: list[Expirable], age_s: int
) -> None:
    """Expire messages of subscriptions that are older than `age_s`.

    Raises:
        HttpRefusal: 409, messages are being expired already; 412, the age is not valid.
        BrokerPersistenceError: older messages cannot be found now.
    """
    if age_s <= 0:
        raise HttpRefusal(412, f"{age_s} s is not a valid message age")
    if keeping.expiry.is_running(topic):
        raise HttpRefusal(409, f"messages of {topic.name} are already being expired")
    try:
        await keeping.expiry.expire(topic, subscriptions, age_s=age_s)
    except LedgerError as error:
        raise BrokerPersistenceError(
            f"{topic.name}: cannot find older messages now: {error}"
        ) from error
    for subscription in subscriptions:
        await operating.persist(subscription)


async def first_of(topic: Topic, place: ResetCursorData) -> tuple[Position, tuple[int, ...]]:
    """Return the first entry to deliver, and the ack_set words of its messages that are to be
    skipped.

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
