"""Single messages of topics over HTTP, and their positions. Source: HTTP sheet, section 9.2.

All routes are for a single topic or partition; for a partitioned topic they answer 405.
"""

from typing import Annotated, Any, Literal

from fastapi import APIRouter, Body, Query, Response
from pydantic import Field

from magnetar.broker.base.json_values import WholeNumber
from magnetar.broker.features.message_index import MessageIndex, find_index
from magnetar.broker.http.bodies import RequestBody
from magnetar.broker.http.context import HttpContext
from magnetar.broker.http.fan_out import TopicWork
from magnetar.broker.http.late_routes import late_router
from magnetar.broker.http.raw_message import raw_message
from magnetar.broker.http.refusals import HttpRefusal
from magnetar.broker.http.topics import MessageId
from magnetar.broker.topic import Topic
from magnetar.broker.topics.inspecting import (
    MESSAGE_POSITION_MAX,
    entry_at,
    first_at,
    last_message,
    nth_entry,
    nth_unacked,
)
from magnetar.broker.topics.operating import backlog_of, create_subscription, subscription_of
from magnetar.ledger.errors import LedgerError
from magnetar.ledger.managed_log.log_retention import bytes_behind
from magnetar.ledger.position import EARLIEST, Position

_TOPIC = "/admin/v2/persistent/{tenant}/{namespace}/{topic}"
_OCTETS = "application/octet-stream"
_BODY: dict[int | str, dict[str, Any]] = {
    200: {"content": {_OCTETS: {"schema": {"type": "string", "format": "binary"}}}}
}
_ID_MAX = (1 << 63) - 1


class LastMessageId(MessageId):
    """Id of the last message of a topic, with its index in a batch, if it is in one."""

    batchIndex: WholeNumber | None = None


class IndexedMessageId(MessageId):
    """Id of the message with an index, with its index in a batch, if it is in one."""

    batchIndex: WholeNumber | None = None


class PlaceOfMessage(RequestBody):
    """Id of a message, as clients name it."""

    ledgerId: WholeNumber = Field(ge=-1, le=_ID_MAX)
    entryId: WholeNumber = Field(ge=-1, le=_ID_MAX)


class _Messages:
    """Routes of single messages of a topic."""

    def __init__(self, context: HttpContext) -> None:
        self._context = context
        self._single = TopicWork(context).single

    def _shown(self, topic: Topic, position: Position, entry: bytes) -> Response:
        headers, body = raw_message(position, entry)
        if topic.visibility.is_aborted(position):
            headers["X-Pulsar-txn-aborted"] = "true"
        elif position > topic.visibility.last:
            headers["X-Pulsar-txn-uncommitted"] = "true"
        return Response(body, media_type=_OCTETS, headers=headers)

    def _named(self, topic: Topic, position: Position) -> MessageId:
        return MessageId(
            ledgerId=position.ledger_id,
            entryId=position.entry_id,
            partitionIndex=topic.name.partition_index,
        )

    async def last_message_id(self, tenant: str, namespace: str, topic: str) -> LastMessageId:
        """Return the id of the last message. `entryId` is -1 if the topic is empty."""
        there = await self._single(tenant, namespace, topic, "the last message")
        position, index = await last_message(there)
        return LastMessageId(
            **self._named(there, position).model_dump(), batchIndex=index if index >= 0 else None
        )

    async def message_id_at(
        self, tenant: str, namespace: str, topic: str, timestamp: int
    ) -> MessageId:
        """Return the id of the first message since a time in ms since 1970; the position after the
        last message if all are older."""
        there = await self._single(tenant, namespace, topic, "the message of a time")
        return self._named(there, await first_at(there, timestamp))

    async def message_id_by_index(
        self, tenant: str, namespace: str, topic: str, index: int
    ) -> IndexedMessageId:
        """Return the id of the message with an index; the next one if that message was trimmed. 404
        if it does not exist yet. 412 if the topic's messages are stored without an index."""
        there = await self._single(tenant, namespace, topic, "the message of an index")
        kept = there.find(MessageIndex)
        if kept is None or not kept.has_index:
            raise HttpRefusal(
                412,
                f"messages of {there.name} are stored without an index: switch it on with the "
                "policy entryMetadata of the namespace",
            )
        if index < 0:
            raise HttpRefusal(404, f"an index is 0 or more, got {index}")
        try:
            found = await find_index(there.log, index)
        except LedgerError as error:
            raise HttpRefusal(503, f"{there.name} cannot be read now: {error}") from error
        if found is None:
            raise HttpRefusal(404, f"{there.name} has no message with index {index} yet")
        place = found.batch_index_of(index)
        return IndexedMessageId(
            **self._named(there, found.position).model_dump(),
            batchIndex=place if place >= 0 else None,
        )

    async def message_by_id(
        self, tenant: str, namespace: str, topic: str, ledger_id: int, entry_id: int
    ) -> Response:
        """Return the payload, with the metadata in headers. 404 if no message has that id."""
        there = await self._single(tenant, namespace, topic, "a message by its id")
        position = Position(ledger_id, entry_id)
        return self._shown(there, position, await entry_at(there, position))

    async def examine(
        self,
        tenant: str,
        namespace: str,
        topic: str,
        initialPosition: Literal["earliest", "latest"] = "latest",
        messagePosition: Annotated[int, Query(le=MESSAGE_POSITION_MAX)] = 1,
    ) -> Response:
        """Return the n-th entry, counted from 1, from the first or back from the last. 412 if there
        are fewer."""
        there = await self._single(tenant, namespace, topic, "a message by its number")
        from_end = initialPosition == "latest"
        position, entry = await nth_entry(there, max(1, messagePosition), from_end=from_end)
        return self._shown(there, position, entry)

    async def peek(
        self, tenant: str, namespace: str, topic: str, sub: str, number: int
    ) -> Response:
        """Return the n-th unacknowledged message, from 1, without a change of the subscription. 404
        if there are fewer.

        A subscription that does not exist is created at the first message, as in Pulsar, whose
        tools look at a topic without consumers in this way.
        """
        there = await self._single(tenant, namespace, topic, "peeking at messages")
        if number > 0 and not _has(there, sub):
            if not (await self._context.policies.of(there.name)).auto_subscription_creation:
                subscription_of(there, sub)  # Raises the error for a missing subscription.
            await create_subscription(self._context.topics, there, sub, EARLIEST, {})
        subscription = backlog_of(there, sub)
        position = await nth_unacked(there, subscription, number) if number > 0 else None
        if position is None:
            raise HttpRefusal(404, f"subscription {sub} of {there.name} has no message {number}")
        return self._shown(there, position, await entry_at(there, position))

    async def backlog_size(
        self, tenant: str, namespace: str, topic: str, place: Annotated[PlaceOfMessage, Body()]
    ) -> int:
        there = await self._single(tenant, namespace, topic, "the size behind a message")
        return bytes_behind(there.log.ledgers, Position(place.ledgerId, place.entryId))


def messages_router(context: HttpContext) -> APIRouter:
    """Return the routes below /admin/v2/persistent."""
    router = late_router(tags=["messages"])
    routes = _Messages(context)
    router.get(
        _TOPIC + "/lastMessageId",
        summary="The last message of a topic",
        response_model_exclude_none=True,
    )(routes.last_message_id)
    router.get(_TOPIC + "/messageid/{timestamp}", summary="The first message at or after a time")(
        routes.message_id_at
    )
    router.get(
        _TOPIC + "/getMessageIdByIndex",
        summary="The message with an index",
        response_model_exclude_none=True,
    )(routes.message_id_by_index)
    router.get(
        _TOPIC + "/ledger/{ledger_id}/entry/{entry_id}",
        summary="A message by its id",
        response_class=Response,
        responses=_BODY,
    )(routes.message_by_id)
    router.get(
        _TOPIC + "/examinemessage",
        summary="A message by its number",
        response_class=Response,
        responses=_BODY,
    )(routes.examine)
    router.get(
        _TOPIC + "/subscription/{sub:path}/position/{number}",
        summary="Peek at a message that a subscription has not acknowledged",
        response_class=Response,
        responses=_BODY,
    )(routes.peek)
    router.put(
        _TOPIC + "/backlogSize",
        summary="Bytes of a topic after a message",
        response_model=int,
    )(routes.backlog_size)
    return router


def _has(topic: Topic, name: str) -> bool:
    return name in topic.subscriptions or name in topic.internal_cursors
