"""A producer at its broker: PRODUCER and CLOSE_PRODUCER, over reconnects."""

from collections.abc import Callable
from functools import partial

from magnetar.sdk.connection import Connection, ProducerListener
from magnetar.sdk.context import ClientContext
from magnetar.sdk.errors import SdkError, ServiceError
from magnetar.sdk.schema import SchemaInfo
from magnetar.sdk.session import Session
from magnetar.sdk.settings import AccessMode, ProducerSettings
from magnetar.sdk.wire.pulsar_pb2 import (
    BaseCommand,
    CommandCloseProducer,
    CommandProducer,
    CommandProducerSuccess,
    KeyValue,
)
from magnetar.sdk.wire.topic_name import TopicName


class ProducerAttachment:
    """Where one producer is attached."""

    def __init__(
        self,
        context: ClientContext,
        topic: TopicName,
        producer_id: int,
        settings: ProducerSettings,
        *,
        listener: ProducerListener,
        schema: SchemaInfo | None,
        on_attached: Callable[[Connection, CommandProducerSuccess], None],
        on_failed: Callable[[SdkError], None],
    ) -> None:
        """`on_attached` comes before `connection` is set, `on_failed` when all is over."""
        self.connection: Connection | None = None
        """The connection, while the broker knows of us."""
        self.name = settings.name
        """Ours, or the one that the broker made up."""
        self.id = producer_id
        self._topic = str(topic)
        self._settings = settings
        self._client_settings = context.settings
        self._listener = listener
        self._schema = schema
        self._on_attached, self._on_failed = on_attached, on_failed
        self._epoch = 0
        self._topic_epoch: int | None = None
        self._waits = settings.access_mode is AccessMode.WAIT_FOR_EXCLUSIVE
        self._session = Session(
            f"producer {producer_id} on {self._topic}",
            find=partial(context.find, topic),
            attach=self._attach,
            on_failed=self._fail,
            settings=context.settings,
            clock=context.clock,
            random=context.random,
            gives_up=not self._waits,
        )

    @property
    def failure(self) -> SdkError | None:
        """Why it is over; None while it lives."""
        return self._session.failure

    @property
    def topic_epoch(self) -> int | None:
        """Of the exclusive access that we have: it counts those who had it before."""
        return self._topic_epoch

    async def start(self) -> None:
        """Attach for the first time; with WAIT_FOR_EXCLUSIVE that takes as long as it takes.

        Raises:
            SdkError: the reason why it could not.
        """
        await self._session.start()

    async def close(self) -> None:
        """Tell the broker, and end the session."""
        try:
            await self._detach()
        finally:
            await self._session.close()

    def lose(self, connection: Connection) -> None:
        """The broker closed the producer, or the connection broke."""
        if connection is self.connection:
            self.connection = None
        self._session.lose(connection)

    def renew(self) -> None:
        """Leave, and attach afresh: what is known of the messages under way is not enough."""
        connection, self.connection = self.connection, None
        if connection is not None:
            connection.producers.pop(self.id, None)
            connection.send(self._close_command(connection.next_request_id()))
            self._session.lose(connection)

    async def _attach(self, connection: Connection) -> None:
        request_id = connection.next_request_id()
        connection.producers[self.id] = self._listener
        try:
            answer = await connection.request(
                request_id,
                self._producer_command(request_id),
                timeout_ms=0 if self._waits else None,
            )
        except ServiceError:
            connection.producers.pop(self.id, None)
            raise
        except BaseException:
            # The broker may have made it all the same: it must not keep our name taken.
            connection.producers.pop(self.id, None)
            connection.send(self._close_command(connection.next_request_id()))
            raise
        success = answer.producer_success
        self.name = success.producer_name
        if success.HasField("topic_epoch"):
            self._topic_epoch = success.topic_epoch
        self._epoch += 1
        # The broker may have dropped us in the very read that brought the answer.
        if connection.producers.get(self.id) is not self._listener:
            return
        self._on_attached(connection, success)
        self.connection = connection

    def _producer_command(self, request_id: int) -> BaseCommand:
        settings = self._settings
        return BaseCommand(
            type=BaseCommand.PRODUCER,
            producer=CommandProducer(
                topic=self._topic,
                producer_id=self.id,
                request_id=request_id,
                producer_name=self.name or None,
                encrypted=settings.encrypted or bool(settings.encryption_keys),
                metadata=[KeyValue(key=k, value=v) for k, v in settings.properties.items()],
                schema=None if self._schema is None else self._schema.to_wire(),
                epoch=self._epoch,
                user_provided_producer_name=bool(settings.name),
                producer_access_mode=settings.access_mode.wire,
                topic_epoch=self._topic_epoch,
                initial_subscription_name=settings.initial_subscription or None,
            ),
        )

    async def _detach(self) -> None:
        connection, self.connection = self.connection, None
        if connection is None or not connection.is_open:
            return
        request_id = connection.next_request_id()
        timeout_ms = self._client_settings.close_timeout_ms
        try:
            await connection.request(
                request_id, self._close_command(request_id), timeout_ms=timeout_ms
            )
        except SdkError:
            pass  # the broker drops the producer with the connection, or has done so already
        finally:
            connection.producers.pop(self.id, None)

    def _close_command(self, request_id: int) -> BaseCommand:
        return BaseCommand(
            type=BaseCommand.CLOSE_PRODUCER,
            close_producer=CommandCloseProducer(producer_id=self.id, request_id=request_id),
        )

    def _fail(self, error: SdkError) -> None:
        self.connection = None
        self._on_failed(error)
