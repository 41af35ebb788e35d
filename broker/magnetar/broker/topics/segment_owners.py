"""What is asked of the owner of a segment: to seal it, delete it, subscribe; whether it is drained.

A segment is a topic like any other: the broker that owns its bundle serves it, and is not always
the one that changes the layout, or divides the segments among consumers. That one asks over HTTP.
"""

import json
from collections.abc import Sequence
from functools import partial
from typing import Protocol
from urllib.parse import quote, urlsplit

from pydantic import JsonValue

from magnetar.broker.base.errors import (
    BrokerMetadataError,
    ConflictError,
    TopicNotFoundError,
)
from magnetar.broker.base.http_client import Answer
from magnetar.broker.cluster.ownership import Owner, Ownership
from magnetar.broker.features.scalable.scalable_topics import durable_subscriptions
from magnetar.broker.features.scalable.sealing import SegmentSealing
from magnetar.broker.topic.termination import terminate
from magnetar.broker.topics.registry import Topics
from magnetar.ledger.metadata.store import MetadataStore
from magnetar.ledger.position import LATEST
from magnetar.sdk.wire import TopicName

_HOPS_MAX = 4
"""To the leader, to the broker that it chooses, and once more if that has just changed."""
_REASON_CHARACTERS_MAX = 300


class Asks(Protocol):
    """Asks another broker; `HttpOrders` does."""

    async def ask(self, http_url: str, method: str, path: str, body: bytes = b"") -> Answer:
        """
        Raises:
            BrokerMetadataError: nothing usable came back.
        """
        ...


class OwnSegments:
    """The segments that this broker owns."""

    def __init__(self, topics: Topics, store: MetadataStore) -> None:
        self._topics = topics
        self._store = store

    async def seal(self, segment: TopicName) -> Sequence[str]:
        """Have a segment take no more messages; returns its durable subscriptions.

        Raises:
            RequestError: it is not sealed, or nobody knows: a repetition goes on.
        """
        scalable = self._topics.scalable
        if not await scalable.is_parting(segment):
            if await scalable.segment(segment) is None:
                raise TopicNotFoundError(f"{segment} does not exist")
            raise ConflictError(f"{segment} is neither being split nor merged: it is not sealed")
        topic = await self._topics.get(segment)
        sealing = topic.find(SegmentSealing)
        assert sealing is not None, f"{segment} is no segment"
        sealing.begin()
        await terminate(topic)
        await sealing.wait_placed()
        return await durable_subscriptions(self._store, segment)

    async def delete(self, segment: TopicName) -> None:
        """Delete what a segment holds; its clients are disconnected.

        Raises:
            RequestError: it is not wholly deleted: a repetition goes on.
        """
        try:
            await self._topics.removal.delete(segment, is_forced=True)
        except TopicNotFoundError:
            pass  # Nobody has used it, or it was deleted before.

    async def subscribe(self, segment: TopicName, subscription: str) -> None:
        """Have a durable subscription at the present end of a segment; one that is there stays.

        Raises:
            RequestError: it is not there, or nobody knows.
        """
        topic = await self._topics.get(segment)
        open_cursor = partial(
            self._topics.open_cursor, topic, self._topics.log_of(topic), subscription, LATEST
        )
        await topic.subscriptions.ensure(subscription, open_cursor)

    async def is_drained(self, segment: TopicName, subscription: str) -> bool:
        """Whether a segment is sealed, and all in it acknowledged. Without a cursor it is not: the
        first consumer decides where the subscription begins.

        Raises:
            RequestError: that cannot be told now.
        """
        try:
            topic = await self._topics.get(segment, may_create=False)
        except TopicNotFoundError:
            return True  # It has never had a message, or is gone with all it had.
        found = topic.subscriptions.get(subscription)
        if found is None or not found.is_open or topic.log.terminated is None:
            return False
        return found.cursor.backlog_entries == 0


class SegmentOwnersAnywhere:
    """Segments wherever they are."""

    def __init__(self, own: OwnSegments, ownership: Ownership, others: Asks) -> None:
        self.own = own
        self._ownership = ownership
        self._others = others

    async def seal(self, segment: TopicName) -> Sequence[str]:
        """Have the owner seal a segment; returns its durable subscriptions.

        Raises:
            RequestError: it is not sealed, or nobody knows.
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

    async def delete(self, segment: TopicName) -> None:
        """Have the owner delete a segment.

        Raises:
            RequestError: it is not deleted, or nobody knows.
        """
        owner = await self._ownership.owner_of(segment)
        if owner.is_self:
            await self.own.delete(segment)
        else:
            await self._ask(owner, "DELETE", segment, "")

    async def subscribe(self, segment: TopicName, subscription: str) -> None:
        """Have the owner of a segment make a durable subscription at its present end.

        Raises:
            RequestError: it is not there, or nobody knows.
        """
        owner = await self._ownership.owner_of(segment)
        if owner.is_self:
            await self.own.subscribe(segment, subscription)
        else:
            await self._ask(owner, "PUT", segment, f"/subscription/{quote(subscription, safe='')}")

    async def is_drained(self, segment: TopicName, subscription: str) -> bool:
        """Ask the owner whether a segment is drained.

        Raises:
            RequestError: that cannot be told now.
        """
        owner = await self._ownership.owner_of(segment)
        if owner.is_self:
            return await self.own.is_drained(segment, subscription)
        action = f"/subscription/{quote(subscription, safe='')}/backlog"
        found = await self._ask(owner, "GET", segment, action)
        return isinstance(found, dict) and found.get("drained") is True

    async def _ask(self, owner: Owner, method: str, segment: TopicName, action: str) -> JsonValue:
        base = owner.http_url
        if not base:
            raise BrokerMetadataError(f"the owner of {segment} has registered no HTTP address")
        flag = str(owner.is_authoritative).lower()
        path = f"{segment_path(segment)}{action}?authoritative={flag}"
        for _ in range(_HOPS_MAX):
            answer = await self._others.ask(base, method, path)
            if answer.status != 307:
                return _value_of(answer, base, path)
            parts = urlsplit(answer.headers.get("location", ""))
            base, path = f"{parts.scheme}://{parts.netloc}", f"{parts.path}?{parts.query}"
        raise BrokerMetadataError(f"the brokers redirect each other for {segment}: try again")


def segment_path(segment: TopicName) -> str:
    """Path of a segment over HTTP."""
    topic, _, descriptor = segment.local_name.rpartition("/")
    return f"/admin/v2/segments/{segment.namespace_name}/{quote(topic, safe='')}/{descriptor}"


def _value_of(answer: Answer, base: str, path: str) -> JsonValue:
    if not answer.is_success:
        reason = answer.body.decode("utf-8", "replace")[:_REASON_CHARACTERS_MAX]
        raise BrokerMetadataError(f"{base} answered {answer.status} to {path}: {reason}")
    try:
        value: JsonValue = json.loads(answer.body) if answer.body else None
    except ValueError as error:
        raise BrokerMetadataError(f"{base} answered no JSON to {path}") from error
    return value
