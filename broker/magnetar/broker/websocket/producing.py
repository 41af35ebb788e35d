"""Producer sessions: from frames to the producers of the SDK, one per partition, and back."""

import asyncio
from functools import partial

import structlog

from magnetar.broker.base.settings.broker import BrokerSettings
from magnetar.broker.websocket.access import Rights
from magnetar.broker.websocket.encryption import add_to
from magnetar.broker.websocket.endpoint import ProducerParameters
from magnetar.broker.websocket.errors import UpgradeRefusedError
from magnetar.broker.websocket.frames import Publish
from magnetar.broker.websocket.producer_core import (
    ProducerCore,
    Router,
    deliver_at_ms,
    encoded_metadata,
    sent_key,
)
from magnetar.broker.websocket.session import Links, Socket, Traffic
from magnetar.ledger.ports import Clock
from magnetar.sdk.errors import PendingLimitError, SdkError
from magnetar.sdk.message_id import MessageId
from magnetar.sdk.producer import Producer
from magnetar.sdk.schemas import BYTES, AutoTextSchema, Schema
from magnetar.sdk.settings import ProducerSettings
from magnetar.sdk.wire.topic_name import TopicName

_log = structlog.get_logger()

_FLUSH_S_MAX = 30.0
"""Longest wait for the outcomes of publishes when a session ends, in seconds: Pulsar's default send
timeout. A client may ask for a longer timeout, or for none. If its topic is gone, its publishes
would hold bytes of the budget of all sessions for ever, though nobody waits for them."""


class ProducerSession:
    """One producer behind a web socket."""

    def __init__(
        self,
        topic: TopicName,
        parameters: ProducerParameters,
        rights: Rights,
        links: Links,
        settings: BrokerSettings,
        *,
        clock: Clock,
        first_partition: int,
    ) -> None:
        """`first_partition`: any number from 0 on; it chooses the first partition without a key."""
        self._topic = topic
        self._parameters = parameters
        self._rights = rights
        self._links = links
        self._settings = settings
        self._clock = clock
        self._router = Router(parameters.hashing, parameters.routing, first=first_partition)
        messages_max = settings.websocket_pending_messages_max
        if parameters.pending_messages_max is not None:
            messages_max = min(messages_max, parameters.pending_messages_max)
        self._core = ProducerCore(
            messages_max=messages_max, bytes_max=settings.websocket_pending_bytes_max
        )
        self.traffic = Traffic()
        self._producers: list[Producer] = []
        self._cut_off: list[asyncio.Future[Producer]] = []
        """Openings of an `open` that was cancelled: some of them may have succeeded before that."""
        self._budgeted_bytes = 0
        """Bytes that this session holds of the budget of all sessions."""
        self._waits_for_budget = False
        self._socket: Socket | None = None
        self._flush: asyncio.Handle | None = None
        self._is_closed = False

    @property
    def topics(self) -> list[TopicName]:
        return [self._topic]

    @property
    def discovers(self) -> bool:
        return bool(self._producers) and self._producers[0].topic != str(self._topic)

    async def open(self) -> None:
        await self._rights.check_produce(self._topic)
        topics = await self._links.topics_of(self._topic)
        if len(topics) > self._settings.websocket_topics_max:
            raise UpgradeRefusedError(400, f"{self._topic} has {len(topics)} partitions")
        await self._open(topics)

    async def _open(self, topics: list[TopicName]) -> None:
        client = self._links.client_for(self._topic)
        settings = self._producer_settings()
        schema: Schema[bytes] = AutoTextSchema() if self._parameters.encodes_text else BYTES
        making = [
            asyncio.ensure_future(client.producer(str(each), settings, schema=schema))
            for each in topics
        ]
        try:
            made = await asyncio.gather(*making, return_exceptions=True)
            producers = [each for each in made if isinstance(each, Producer)]
            failure = next((each for each in made if isinstance(each, BaseException)), None)
            if failure is not None or self._is_closed:
                await asyncio.gather(
                    *(each.close(flush=False) for each in producers), return_exceptions=True
                )
        except asyncio.CancelledError:
            self._cut_off += making
            raise
        if failure is not None:
            raise failure
        if not self._is_closed:
            self._producers += producers

    def _producer_settings(self) -> ProducerSettings:
        parameters = self._parameters
        return ProducerSettings(
            name=parameters.name,
            initial_sequence_id=parameters.first_sequence_id,
            batching=parameters.batching,
            batch_messages_max=parameters.batch_messages_max,
            batch_delay_ms=parameters.batch_delay_ms,
            # The core limits what is in flight; this adds room for the content of one read.
            pending_messages_max=self._settings.websocket_pending_messages_max + 1_000_000,
            pending_bytes_max=self._settings.websocket_pending_bytes_max + (1 << 30),
            send_timeout_ms=parameters.send_timeout_ms,
            compression=parameters.compression,
            encrypted=bool(parameters.encryption_keys),
        )

    def begin(self, socket: Socket) -> None:
        self._socket = socket

    def on_text(self, data: bytes) -> None:
        publish = self._core.on_text(data)
        if publish is None:
            self._answer_soon()
            return
        self._links.budget.take(publish.held_bytes)
        self._budgeted_bytes += publish.held_bytes
        producer = self._producers[self._router.choose(publish.key, len(self._producers))]
        on_sent = partial(self._on_outcome, publish)
        due_ms = deliver_at_ms(publish, self._clock.wall_ms())
        try:
            if self._parameters.encryption_keys:
                metadata = encoded_metadata(publish, due_ms)
                add_to(metadata, self._parameters.encryption_keys, publish.encoding)
                producer.send_encoded_nowait(publish.payload, metadata, on_sent=on_sent)
            else:
                producer.send_nowait(
                    None if publish.is_null else publish.payload,
                    key=sent_key(publish),
                    properties=publish.properties,
                    event_time_ms=publish.event_time_ms,
                    deliver_at_ms=due_ms,
                    replicate_to=publish.replicate_to,
                    on_sent=on_sent,
                )
        except (SdkError, PendingLimitError) as error:
            self._on_outcome(publish, None, error)
        if self._socket is None:
            return
        if self._links.budget.is_exhausted:
            self._waits_for_budget = True
            self._links.budget.wait(self)
        if self._core.is_full or self._waits_for_budget:
            self._socket.hold_reading(True)

    def resume_publishing(self) -> None:
        """Read on: the budget has room again. Called by the budget."""
        self._waits_for_budget = False
        self._read_on()

    def _read_on(self) -> None:
        if self._socket is not None and not (self._core.is_full or self._waits_for_budget):
            self._socket.hold_reading(False)

    def _give_back(self, size: int) -> None:
        size = min(size, self._budgeted_bytes)
        self._budgeted_bytes -= size
        self._links.budget.give_back(size)

    def _on_outcome(
        self, publish: Publish, message_id: MessageId | None, error: SdkError | None
    ) -> None:
        self._core.on_outcome(publish, message_id, error)
        self._give_back(publish.held_bytes)
        if message_id is not None:
            self.traffic.messages += 1
            self.traffic.payload_bytes += len(publish.payload)
        self._answer_soon()

    def _answer_soon(self) -> None:
        """Send all outcomes of one turn of the event loop in one write."""
        if self._flush is None and self._socket is not None:
            self._flush = asyncio.get_running_loop().call_soon(self._answer)

    def _answer(self) -> None:
        self._flush = None
        socket = self._socket
        if socket is None or self._is_closed:
            return
        answers = self._core.take_answers()
        if answers:
            socket.send(answers)
        self._read_on()

    def on_writable(self) -> None:
        """Do nothing: while the client does not read, it is not read either, so answers are few."""

    async def discover(self) -> None:
        topics = await self._links.topics_of(self._topic)
        new = topics[len(self._producers) :]
        if new:
            await self._open(new)

    async def check_rights(self) -> None:
        await self._rights.check_produce(self._topic)

    async def close(self) -> None:
        self._is_closed = True
        self._socket = None
        if self._waits_for_budget:
            self._links.budget.forget(self)
        try:
            await self._close_producers()
        finally:
            if self._budgeted_bytes:  # Publishes whose outcome will not come any more.
                self._give_back(self._budgeted_bytes)

    async def _close_producers(self) -> None:
        cut_off = await asyncio.gather(*self._cut_off, return_exceptions=True)
        made = [each for each in cut_off if isinstance(each, Producer)]
        results = await asyncio.gather(
            *(self._flush_and_close(each) for each in [*self._producers, *made]),
            return_exceptions=True,
        )
        for result in results:
            if isinstance(result, Exception) and not isinstance(result, SdkError):
                _log.error("websocket_close_failed", topic=str(self._topic), exc_info=result)

    async def _flush_and_close(self, producer: Producer) -> None:
        try:
            async with asyncio.timeout(_FLUSH_S_MAX):
                await producer.close()
        except TimeoutError:
            _log.info("websocket_publishes_given_up", topic=str(self._topic))
