"""The consuming side of one connection: SUBSCRIBE, FLOW, ACK and everything about a consumer.

FLOW, ACK and redelivery are handled at once; what touches a cursor's place (SUBSCRIBE, UNSUBSCRIBE,
SEEK) runs as a task. Commands for a consumer that is gone are normal (acknowledgements may arrive
after an unsubscribe) and ignored, unless they are requests, which get an answer.
"""

import asyncio
from collections.abc import Callable, Sequence
from functools import partial

from magnetar.broker.base import replies
from magnetar.broker.base.errors import (
    BrokerMetadataError,
    ConsumerNotFoundError,
    NotAllowedError,
    ProtocolViolationError,
    RequestError,
    ServiceNotReadyError,
    UnknownFailureError,
)
from magnetar.broker.cluster.ownership.protocol import Destination
from magnetar.broker.features.transactions.ids import TransactionId
from magnetar.broker.features.transactions.topic_transactions import transactions_of
from magnetar.broker.protocol.consuming.acknowledging import acknowledge, transactional_acks
from magnetar.broker.protocol.consuming.attaching import Attached, Attacher
from magnetar.broker.protocol.consuming.questions import last_message_id, stats_of
from magnetar.broker.protocol.link import Link
from magnetar.broker.protocol.login import Login
from magnetar.broker.topic.consumer import Consumer
from magnetar.broker.topic.positions import position_at_time, position_of
from magnetar.broker.topic.subscription import Subscription
from magnetar.broker.topics.services import Services
from magnetar.ledger.errors import LedgerError
from magnetar.ledger.position import Position
from magnetar.sdk.wire import BaseCommand, SingleAck, TopicName
from magnetar.sdk.wire.pulsar_pb2 import (
    CommandAck,
    CommandCloseConsumer,
    CommandConsumerStats,
    CommandConsumerStatsResponse,
    CommandFlow,
    CommandGetLastMessageId,
    CommandRedeliverUnacknowledgedMessages,
    CommandSeek,
    CommandSubscribe,
    CommandUnsubscribe,
)

_LEAVING_PER_TURN = 25
"""Consumers of a lost connection that leave in one turn of the event loop."""


class _Pending:
    """A consumer that is being created; closing it before that is done cancels it."""

    __slots__ = ("is_cancelled",)

    def __init__(self) -> None:
        self.is_cancelled = False


class Consuming:
    """Consumers of one connection."""

    def __init__(self, link: Link, services: Services, login: Login) -> None:
        self._link = link
        self._services = services
        self._login = login
        self._consumers: dict[int, Attached] = {}
        self._creating: dict[int, _Pending] = {}
        self._closed_until_s: dict[int, float] = {}
        """Consumers that the broker closed: acknowledgements under way are told so for a while."""

    def consumers(self) -> Sequence[tuple[TopicName, Subscription, Consumer]]:
        """Those that are there now, each with its place."""
        return [
            (each.topic.name, each.subscription, each.consumer) for each in self._consumers.values()
        ]

    def handlers(self) -> dict[int, Callable[[BaseCommand], None]]:
        return {
            BaseCommand.SUBSCRIBE: lambda command: self._on_subscribe(command.subscribe),
            BaseCommand.FLOW: lambda command: self._on_flow(command.flow),
            BaseCommand.ACK: lambda command: self._on_ack(command.ack),
            BaseCommand.REDELIVER_UNACKNOWLEDGED_MESSAGES: lambda command: self._on_redeliver(
                command.redeliverUnacknowledgedMessages
            ),
            BaseCommand.UNSUBSCRIBE: lambda command: self._on_unsubscribe(command.unsubscribe),
            BaseCommand.CLOSE_CONSUMER: lambda command: self._on_close(command.close_consumer),
            BaseCommand.SEEK: lambda command: self._on_seek(command.seek),
            BaseCommand.GET_LAST_MESSAGE_ID: lambda command: self._on_last_message_id(
                command.getLastMessageId
            ),
            BaseCommand.CONSUMER_STATS: lambda command: self._on_stats(command.consumerStats),
        }

    def wake(self) -> None:
        """The connection can take more."""
        for attached in list(self._consumers.values()):
            attached.subscription.wake()

    def _attached(self, consumer_id: int) -> Attached:
        """
        Raises:
            BrokerMetadataError: there is no such consumer.
        """
        attached = self._consumers.get(consumer_id)
        if attached is None:
            raise BrokerMetadataError(f"there is no consumer {consumer_id}")
        return attached

    # SUBSCRIBE

    def _on_subscribe(self, request: CommandSubscribe) -> None:
        link = self._link
        request_id, consumer_id = request.request_id, request.consumer_id
        refuse = partial(_refuse, request_id)
        settings = self._services.settings
        if consumer_id in self._consumers:
            link.write(replies.success(request_id))
        elif consumer_id in self._creating:
            link.write(refuse(ServiceNotReadyError(f"consumer {consumer_id} is being created")))
        elif len(self._consumers) + len(self._creating) >= settings.consumers_per_connection_max:
            link.write(refuse(NotAllowedError("too many consumers on this connection")))
        else:
            pending = self._creating[consumer_id] = _Pending()
            if not link.start(self._subscribe(request, pending), refuse):
                del self._creating[consumer_id]

    async def _subscribe(self, request: CommandSubscribe, pending: _Pending) -> None:
        consumer_id = request.consumer_id
        try:
            attacher = Attacher(
                self._link, self._services, self._login, on_closed=self._closed_by_broker
            )
            attached = await attacher.attach(request)
        except ServiceNotReadyError as error:
            # The official client hangs on a retryable error here (trap 10); it recovers from a
            # lost connection. The load was tried for as long as the client waits anyway.
            raise ProtocolViolationError(f"subscribe is given up: {error}") from error
        finally:
            if self._creating.get(consumer_id) is pending:
                del self._creating[consumer_id]
        if self._link.is_closed or pending.is_cancelled:
            attached.topic.subscriptions.left(attached.subscription, attached.consumer)
            return
        if attached.consumer.is_closed:
            # The topic was closed in the same moment: as if it had happened a little later.
            self._link.write(replies.success(request.request_id))
            self._link.write(replies.close_consumer(consumer_id))
            return
        self._closed_until_s.pop(consumer_id, None)
        self._consumers[consumer_id] = attached
        self._link.write(replies.success(request.request_id))

    # FLOW, ACK, redelivery

    def _on_flow(self, flow: CommandFlow) -> None:
        attached = self._consumers.get(flow.consumer_id)
        if attached is not None and flow.messagePermits > 0:
            attached.subscription.flow(attached.consumer, flow.messagePermits)

    def on_single_ack(self, ack: SingleAck) -> None:
        """As nearly always: one entry as a whole, and nobody waits for an answer."""
        attached = self._consumers.get(ack.consumer_id)
        if attached is not None and attached.topic.tenure.holds():
            position = Position(ack.ledger_id, ack.entry_id)
            if position <= attached.topic.log.last_confirmed:
                attached.subscription.acknowledge_each(attached.consumer, (position,))

    def _on_ack(self, ack: CommandAck) -> None:
        error: RequestError | None = None
        attached = self._consumers.get(ack.consumer_id)
        if ack.HasField("txnid_most_bits") or ack.HasField("txnid_least_bits"):
            self._on_transactional_ack(ack, attached)
            return
        if attached is not None and attached.topic.tenure.holds():
            acknowledge(attached, ack)
        elif attached is not None or ack.consumer_id in self._closed_until_s:
            # Not taken: the message comes again, wherever the topic is served now.
            error = ServiceNotReadyError(f"the topic of consumer {ack.consumer_id} has moved")
        if not ack.HasField("request_id"):
            return
        if error is None:
            answer = replies.ack_response(ack.consumer_id, ack.request_id)
        else:
            answer = replies.ack_response(
                ack.consumer_id, ack.request_id, code=error.code, message=str(error)
            )
        self._link.write(answer)

    def _on_transactional_ack(self, ack: CommandAck, attached: Attached | None) -> None:
        answer = partial(replies.ack_response, ack.consumer_id, ack.request_id)

        def refuse(error: RequestError) -> bytes:
            if not ack.HasField("request_id"):
                return b""
            return answer(code=error.code, message=str(error))

        async def acknowledge_in_transaction() -> None:
            if attached is None:
                raise ServiceNotReadyError(f"there is no consumer {ack.consumer_id} any more")
            transactions = transactions_of(attached.topic)
            individual, cumulative = transactional_acks(attached, ack)
            await transactions.acks.acknowledge(
                attached.subscription,
                attached.consumer,
                TransactionId(ack.txnid_most_bits, ack.txnid_least_bits),
                individual,
                cumulative,
            )
            if ack.HasField("request_id"):
                self._link.write(answer())

        self._link.start(acknowledge_in_transaction(), refuse)

    def _on_redeliver(self, request: CommandRedeliverUnacknowledgedMessages) -> None:
        attached = self._consumers.get(request.consumer_id)
        if attached is None:
            return
        positions = list(map(position_of, request.message_ids)) or None
        epoch = request.consumer_epoch if request.HasField("consumer_epoch") else -1
        attached.subscription.redeliver(attached.consumer, positions, epoch=epoch)

    # UNSUBSCRIBE, CLOSE_CONSUMER

    def _on_unsubscribe(self, request: CommandUnsubscribe) -> None:
        self._link.start(
            self._unsubscribe(request), partial(_refuse, request.request_id), must_finish=True
        )

    async def _unsubscribe(self, request: CommandUnsubscribe) -> None:
        attached = self._attached(request.consumer_id)
        await attached.topic.subscriptions.unsubscribe(
            attached.subscription, attached.consumer, is_forced=request.force
        )
        self._forget(attached)
        self._link.write(replies.success(request.request_id))

    def _on_close(self, request: CommandCloseConsumer) -> None:
        pending = self._creating.pop(request.consumer_id, None)
        if pending is not None:
            pending.is_cancelled = True
        attached = self._consumers.pop(request.consumer_id, None)
        if attached is not None:
            attached.topic.subscriptions.left(attached.subscription, attached.consumer)
        self._link.write(replies.success(request.request_id))

    def _closed_by_broker(self, consumer: Consumer, destination: Destination | None) -> None:
        """The consumer was closed: tell the client, which subscribes again under the same id."""
        attached = self._consumers.get(consumer.consumer_id)
        if attached is not None and attached.consumer is consumer:
            del self._consumers[consumer.consumer_id]
            self._closed_until_s[consumer.consumer_id] = (
                self._services.clock.monotonic_s()
                + self._services.settings.keep_alive_interval_ms / 1000
            )
            url = self._link.url_of(destination)
            self._link.write(replies.close_consumer(consumer.consumer_id, url))

    def on_tick(self) -> None:
        """Forget closed consumers whose last acknowledgements must have arrived."""
        now_s = self._services.clock.monotonic_s()
        for consumer_id in [each for each, until in self._closed_until_s.items() if until <= now_s]:
            del self._closed_until_s[consumer_id]

    def _forget(self, attached: Attached) -> None:
        consumer_id = attached.consumer.consumer_id
        if self._consumers.get(consumer_id) is attached:
            del self._consumers[consumer_id]

    def lost(self) -> None:
        """The connection is gone: everybody leaves, some at once and some in each further turn."""
        consumers, self._consumers = self._consumers, {}
        _leave(list(consumers.values()))

    # SEEK

    def _on_seek(self, request: CommandSeek) -> None:
        self._link.start(
            self._seek(request), partial(_refuse, request.request_id), must_finish=True
        )

    async def _seek(self, request: CommandSeek) -> None:
        attached = self._attached(request.consumer_id)
        if request.HasField("message_id") == request.HasField("message_publish_time"):
            raise BrokerMetadataError("a seek takes either a message id or a publish time")

        async def find() -> tuple[Position, Sequence[int]]:
            if request.HasField("message_publish_time"):
                return await position_at_time(attached.topic.log, request.message_publish_time), ()
            return position_of(request.message_id), request.message_id.ack_set

        try:
            await attached.subscription.seek(attached.consumer, find)
        except LedgerError as error:
            raise UnknownFailureError(f"the position was not found: {error}") from error
        self._link.write(replies.success(request.request_id))

    # Questions

    def _on_last_message_id(self, request: CommandGetLastMessageId) -> None:
        self._link.start(self._last_message_id(request), partial(_refuse, request.request_id))

    async def _last_message_id(self, request: CommandGetLastMessageId) -> None:
        attached = self._attached(request.consumer_id)
        self._link.write(await last_message_id(request.request_id, attached))

    def _on_stats(self, request: CommandConsumerStats) -> None:
        attached = self._consumers.get(request.consumer_id)
        if attached is None:
            error = ConsumerNotFoundError(f"there is no consumer {request.consumer_id}")
            response = CommandConsumerStatsResponse(
                request_id=request.request_id, error_code=error.code, error_message=str(error)
            )
        else:
            now_ms = self._services.clock.wall_ms()
            response = stats_of(request.request_id, attached, now_ms=now_ms)
        self._link.write(replies.consumer_stats(response))


def _leave(leaving: list[Attached]) -> None:
    """Take consumers out of their subscriptions, those of one subscription together.

    Of a connection with thousands of them this takes a while, in which nobody else may wait.
    """
    groups: dict[Subscription, list[Attached]] = {}
    for attached in leaving[:_LEAVING_PER_TURN]:
        groups.setdefault(attached.subscription, []).append(attached)
    for subscription, group in groups.items():
        consumers = [attached.consumer for attached in group]
        group[0].topic.subscriptions.left_all(subscription, consumers)
    rest = leaving[_LEAVING_PER_TURN:]
    if rest:
        asyncio.get_running_loop().call_soon(_leave, rest)


def _refuse(request_id: int, error: RequestError) -> bytes:
    return replies.error(request_id, error.code, str(error))
