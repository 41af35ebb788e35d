"""Requests to the owner of a segment: seal, delete, load, subscribe, seek, and whether it is
drained.

A segment is a topic like any other, served by the broker that owns its bundle. Another broker may
change the layout, or divide the segments among consumers. That broker sends requests over HTTP.
"""

import asyncio
import json
import re
from collections.abc import Sequence
from functools import partial
from typing import Protocol
from urllib.parse import quote, urlsplit

from pydantic import JsonValue

from magnetar.broker.base import naming
from magnetar.broker.base.errors import (
    BrokerMetadataError,
    ConflictError,
    NotAllowedError,
    SubscriptionNotFoundError,
    TopicNotFoundError,
)
from magnetar.broker.base.http_client import Answer
from magnetar.broker.cluster.ownership import Owner, Ownership
from magnetar.broker.features.retention.trimming import is_used_up
from magnetar.broker.features.scalable.scalable_topics import durable_subscriptions
from magnetar.broker.features.scalable.sealing import SegmentSealing
from magnetar.broker.topic import Topic
from magnetar.broker.topic.consumer import Consumer
from magnetar.broker.topic.producer import Producer
from magnetar.broker.topic.subscription import Subscription
from magnetar.broker.topic.termination import terminate
from magnetar.broker.topics import operating
from magnetar.broker.topics.registry import Topics
from magnetar.ledger.metadata.store import MetadataStore
from magnetar.ledger.position import LATEST
from magnetar.sdk.wire import TopicName

_HOPS_MAX = 4
"""Most redirects to follow: to the leader, to the broker that it chooses, and spares for a change
meanwhile."""
_REASON_CHARACTERS_MAX = 300
LEGACY = "legacy"
"""Descriptor of a plain topic in the path of a segment; with an index appended, of a partition."""
_MARK = "__pulsar.v5.managed"
"""Metadata key of producers and consumers of Pulsar 5 on plain topics and partitions."""
_OF_SEGMENT = re.compile(r".+-seg-[0-9]+", re.DOTALL)
"""Consumer names of Pulsar 5 clients, including those that contain a name given by the user."""


class Asks(Protocol):
    """Sends requests to another broker; `HttpOrders` implements it."""

    async def ask(self, http_url: str, method: str, path: str, body: bytes = b"") -> Answer:
        """Send a request and return the answer.

        Raises:
            BrokerMetadataError: there was no usable answer.
        """
        ...


class Holds(Protocol):
    """Holds segments back; `SegmentCoordinators` implements it."""

    async def hold_back(self, topic: TopicName, subscription: str) -> None: ...


class OwnSegments:
    """The segments that this broker owns."""

    def __init__(self, topics: Topics, store: MetadataStore) -> None:
        self._topics = topics
        self._store = store

    async def seal(self, segment: TopicName) -> Sequence[str]:
        """Seal a segment, so that it takes no more messages; return its durable subscriptions.

        Raises:
            RequestError: it is not sealed, or the outcome is unknown; a repeated call continues.
        """
        scalable = self._topics.scalable
        if not await scalable.is_parting(segment):
            if await scalable.segment(segment) is None:
                raise TopicNotFoundError(f"{segment} does not exist")
            raise ConflictError(f"{segment} is neither being split nor merged: it is not sealed")
        try:
            topic = await self._topics.get(segment, may_create=segment.is_segment)
        except TopicNotFoundError:
            if segment.is_segment:
                raise
            return []  # A topic that was deleted during its migration has nothing to seal.
        sealing = topic.find(SegmentSealing)
        if sealing is None:
            raise NotAllowedError(f"{segment} is a topic of the brokers' own: it is not migrated")
        sealing.begin()
        # From here on no subscription is added, so the list need not wait for the end of the log.
        # It is valid only with that end: until then, another owner may add subscriptions.
        ended, names = await asyncio.gather(
            terminate(topic),
            self._placed(segment, sealing),
            return_exceptions=True,
        )
        if isinstance(ended, BaseException):
            raise ended
        if isinstance(names, BaseException):
            raise names
        return names

    async def _placed(self, segment: TopicName, sealing: SegmentSealing) -> list[str]:
        """Return the durable subscriptions of a segment, after those that are being created."""
        await sealing.wait_placed()
        return await durable_subscriptions(self._store, segment)

    async def open_ahead(self, segment: TopicName) -> None:
        """Load a segment that a running change creates; no client gets it before the change is
        complete.

        Does nothing if no such change runs.

        Raises:
            RequestError: it is not loaded.
        """
        if await self._topics.scalable.is_coming(segment):
            await self._topics.open_ahead(segment)

    async def delete(self, segment: TopicName) -> None:
        """Delete the data of a segment; its clients are disconnected.

        Raises:
            ConflictError: its topic needs it.
            RequestError: it is not completely deleted; a repeated call continues.
        """
        still = partial(self._topics.scalable.check_going, segment)
        try:
            await self._topics.removal.delete(segment, is_forced=True, still=still)
        except TopicNotFoundError:
            pass  # It was never used, or was deleted before.

    async def unsubscribe(self, segment: TopicName, subscription: str, *, is_forced: bool) -> bool:
        """Delete a subscription of a segment; return False if it has none of that name.

        Raises:
            RequestError: it is not deleted, or the outcome is unknown.
        """
        topic, found = await self._subscription(segment, subscription)
        if topic is None or found is None:
            return False
        await topic.subscriptions.delete(found, is_forced=is_forced)
        return True

    async def seek(self, segment: TopicName, subscription: str, publish_ms: int | None) -> bool:
        """Move a subscription of a segment to a publish time; None: to the end.

        Return False if the segment has no subscription of that name.

        Raises:
            RequestError: it has not moved, or the outcome is unknown.
        """
        topic, found = await self._subscription(segment, subscription)
        if topic is None or found is None:
            return False
        if publish_ms is None:
            await operating.reset(found, LATEST)
        else:
            await operating.reset_to_time(topic, found, publish_ms)
        return True

    async def _subscription(
        self, segment: TopicName, name: str
    ) -> tuple[Topic | None, Subscription | None]:
        try:
            topic = await self._topics.get(segment, may_create=False)
            return topic, operating.subscription_of(topic, name)
        except (TopicNotFoundError, SubscriptionNotFoundError):
            return None, None

    async def is_used_up(self, segment: TopicName) -> bool:
        """Whether a sealed segment holds nothing that is needed any more.

        Raises:
            RequestError: this cannot be determined now.
        """
        try:
            topic = await self._topics.get(segment, may_create=False)
        except TopicNotFoundError:
            return True  # It is deleted with all its data.
        return is_used_up(topic, now_ms=topic.clock.wall_ms())

    def classic_clients(self, segment: TopicName) -> int:
        """Return the number of producers and consumers not known to be Pulsar 5 clients."""
        topic = self._topics.served(segment)
        if topic is None:
            return 0
        clients: list[Producer | Consumer] = list(topic.producers.values())
        for subscription in topic.subscriptions.values():
            clients += subscription.consumers
        return sum(not _is_of_version_5(each) for each in clients)

    async def subscribe(self, segment: TopicName, subscription: str) -> None:
        """Create a durable subscription at the current end of a segment; an existing one is kept.

        Raises:
            RequestError: it does not exist, or the outcome is unknown.
        """
        topic = await self._topics.get(segment)
        open_cursor = partial(
            self._topics.open_cursor, topic, self._topics.log_of(topic), subscription, LATEST
        )
        await topic.subscriptions.ensure(subscription, open_cursor)

    async def is_drained(self, segment: TopicName, subscription: str) -> bool:
        """Whether a segment is sealed and everything in it is acknowledged.

        Without a cursor it is not drained: the first consumer decides where the subscription
        begins.

        Raises:
            RequestError: this cannot be determined now.
        """
        try:
            topic = await self._topics.get(segment, may_create=False)
        except TopicNotFoundError:
            return True  # It never had a message, or is deleted with all its data.
        found = topic.subscriptions.get(subscription)
        if found is None or not found.is_open or topic.log.terminated is None:
            return False
        return found.cursor.backlog_entries == 0


class SegmentOwnersAnywhere:
    """Segments of any broker: handled here, or by a request to the owner."""

    def __init__(self, own: OwnSegments, ownership: Ownership, others: Asks) -> None:
        self.own = own
        self._ownership = ownership
        self._others = others
        self.coordinators: Holds | None = None
        """The segment coordinators of this broker."""

    async def seal(self, segment: TopicName) -> Sequence[str]:
        """Have the owner seal a segment; return its durable subscriptions.

        Raises:
            RequestError: it is not sealed, or the outcome is unknown.
        """
        owner = await self._ownership.owner_of(segment)
        if owner.is_self:
            return await self.own.seal(segment)
        found = await self._ask(owner, "POST", segment, "/terminate")
        names = found.get("subscriptions") if isinstance(found, dict) else None
        if not isinstance(names, list):
            raise BrokerMetadataError(
                f"the owner of {segment} did not say which subscriptions it has"
            )
        return [str(name) for name in names]

    async def open_ahead(self, segment: TopicName) -> None:
        """Have the owner load a segment that a running change creates.

        Raises:
            RequestError: it is not loaded, or the outcome is unknown.
        """
        owner = await self._ownership.owner_of(segment)
        if owner.is_self:
            await self.own.open_ahead(segment)
        else:
            await self._ask(owner, "PUT", segment, "/ahead")

    async def delete(self, segment: TopicName) -> None:
        """Have the owner delete a segment.

        Raises:
            RequestError: it is not deleted, or the outcome is unknown.
        """
        owner = await self._ownership.owner_of(segment)
        if owner.is_self:
            await self.own.delete(segment)
        else:
            await self._ask(owner, "DELETE", segment, "")

    async def unsubscribe(self, segment: TopicName, subscription: str, *, is_forced: bool) -> bool:
        """Have the owner of a segment delete a subscription; return False if there is none of that
        name.

        Raises:
            RequestError: it is not deleted, or the outcome is unknown.
        """
        owner = await self._ownership.owner_of(segment)
        if owner.is_self:
            return await self.own.unsubscribe(segment, subscription, is_forced=is_forced)
        action = f"/subscription/{quote(subscription, safe='')}"
        query = "&force=true" if is_forced else ""
        found = await self._ask(owner, "DELETE", segment, action, query)
        return isinstance(found, dict) and found.get("found") is True

    async def seek(self, segment: TopicName, subscription: str, publish_ms: int | None) -> bool:
        """Have the owner of a segment move a subscription to a publish time, or to the end.

        Return False if the segment has no subscription of that name.

        Raises:
            RequestError: it has not moved, or the outcome is unknown.
        """
        owner = await self._ownership.owner_of(segment)
        if owner.is_self:
            return await self.own.seek(segment, subscription, publish_ms)
        action = f"/subscription/{quote(subscription, safe='')}/seek"
        query = f"&timestamp={publish_ms}" if publish_ms is not None else ""
        found = await self._ask(owner, "POST", segment, action, query)
        return isinstance(found, dict) and found.get("found") is True

    async def hold_back(self, topic: TopicName, subscription: str) -> None:
        """Inform the owner of a topic's name that the set of segments held back has changed.

        Raises:
            RequestError: it is unknown whether the owner was informed.
        """
        owner = await self._ownership.owner_of(topic)
        if owner.is_self:
            assert self.coordinators is not None, "set when the broker is composed"
            await self.coordinators.hold_back(topic, subscription)
            return
        local = quote(topic.local_name, safe="")
        path = f"/admin/v2/segments/{topic.namespace_name}/{local}/held"
        query = f"&subscription={quote(subscription, safe='')}"
        await self._ask_at(owner, "PUT", topic, path, query)

    async def is_used_up(self, segment: TopicName) -> bool:
        """Ask the owner whether a sealed segment holds nothing that is needed any more.

        Raises:
            RequestError: this cannot be determined now.
        """
        owner = await self._ownership.owner_of(segment)
        if owner.is_self:
            return await self.own.is_used_up(segment)
        found = await self._ask(owner, "GET", segment, "/used-up")
        return isinstance(found, dict) and found.get("usedUp") is True

    async def classic_clients(self, segment: TopicName) -> int:
        """Ask the owner for the number of clients not known to be Pulsar 5 clients.

        Raises:
            RequestError: this cannot be determined now.
        """
        owner = await self._ownership.owner_of(segment)
        if owner.is_self:
            return self.own.classic_clients(segment)
        found = await self._ask(owner, "GET", segment, "/clients")
        count = found.get("classic") if isinstance(found, dict) else None
        if not isinstance(count, int):
            raise BrokerMetadataError(f"the owner of {segment} did not say which clients it has")
        return count

    async def subscribe(self, segment: TopicName, subscription: str) -> None:
        """Have the owner of a segment create a durable subscription at the current end.

        Raises:
            RequestError: it does not exist, or the outcome is unknown.
        """
        owner = await self._ownership.owner_of(segment)
        if owner.is_self:
            await self.own.subscribe(segment, subscription)
        else:
            await self._ask(owner, "PUT", segment, f"/subscription/{quote(subscription, safe='')}")

    async def is_drained(self, segment: TopicName, subscription: str) -> bool:
        """Ask the owner whether a segment is drained.

        Raises:
            RequestError: this cannot be determined now.
        """
        owner = await self._ownership.owner_of(segment)
        if owner.is_self:
            return await self.own.is_drained(segment, subscription)
        action = f"/subscription/{quote(subscription, safe='')}/backlog"
        found = await self._ask(owner, "GET", segment, action)
        return isinstance(found, dict) and found.get("drained") is True

    async def _ask(
        self, owner: Owner, method: str, segment: TopicName, action: str, query: str = ""
    ) -> JsonValue:
        return await self._ask_at(owner, method, segment, segment_path(segment) + action, query)

    async def _ask_at(
        self, owner: Owner, method: str, name: TopicName, path: str, query: str
    ) -> JsonValue:
        base = owner.http_url
        if not base:
            raise BrokerMetadataError(f"the owner of {name} has registered no HTTP address")
        flag = str(owner.is_authoritative).lower()
        path = f"{path}?authoritative={flag}{query}"
        for _ in range(_HOPS_MAX):
            answer = await self._others.ask(base, method, path)
            if answer.status != 307:
                return _value_of(answer, base, path)
            parts = urlsplit(answer.headers.get("location", ""))
            base, path = f"{parts.scheme}://{parts.netloc}", f"{parts.path}?{parts.query}"
        raise BrokerMetadataError(f"the brokers redirect each other for {name}: try again")


def segment_path(segment: TopicName) -> str:
    """Return the HTTP path of a segment, or of a plain topic or partition that is migrated."""
    topic, _, descriptor = segment.local_name.rpartition("/")
    if not segment.is_segment:
        topic = segment.partitioned.local_name
        descriptor = f"{LEGACY}{max(segment.partition_index, 0)}"
        if segment.partition_index < 0:
            descriptor = LEGACY
    return f"/admin/v2/segments/{segment.namespace_name}/{quote(topic, safe='')}/{descriptor}"


def segment_at(namespace: str, topic: str, descriptor: str) -> TopicName:
    """Return the name from which `segment_path` made the path.

    Raises:
        InvalidTopicNameError: `segment_path` makes no such path.
    """
    index = descriptor.removeprefix(LEGACY)
    if descriptor == LEGACY:
        return naming.topic_of(f"persistent://{namespace}/{topic}")
    if index != descriptor and index.isascii() and index.isdigit():
        return naming.topic_of(f"persistent://{namespace}/{topic}").partition(int(index))
    return naming.topic_of(f"segment://{namespace}/{topic}/{descriptor}")


def _is_of_version_5(client: Producer | Consumer) -> bool:
    """Whether a client is known to be of Pulsar 5.

    Stream and checkpoint consumers do not mark themselves by metadata; stream consumers are
    recognized by their names.
    """
    is_marked = client.metadata.get(_MARK) == "true"
    return is_marked or _OF_SEGMENT.fullmatch(client.name) is not None


def _value_of(answer: Answer, base: str, path: str) -> JsonValue:
    if not answer.is_success:
        reason = answer.body.decode("utf-8", "replace")[:_REASON_CHARACTERS_MAX]
        raise BrokerMetadataError(f"{base} answered {answer.status} to {path}: {reason}")
    try:
        value: JsonValue = json.loads(answer.body) if answer.body else None
    except ValueError as error:
        raise BrokerMetadataError(f"{base} answered no JSON to {path}") from error
    return value
