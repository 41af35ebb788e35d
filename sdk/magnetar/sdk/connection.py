"""Connections to brokers: one connection, and the pool that shares connections by address.

A connection does the handshake, keep-alive, requests, and the streams of its users. It turns frames
into calls. Answers go to the caller by request id. Receipts go to producers and messages to
consumers, with one call for each run of them in a network read. All that is written within one turn
of the event loop is sent in one piece. A connection never reconnects: when it is lost, it notifies
all its users once, and is done (see `session.py`).

The pool has one connection per broker, opened at first use and shared by all users.
"""

import asyncio
import logging
from collections.abc import Coroutine, Iterable
from functools import partial
from typing import Protocol, cast

from magnetar.sdk.errors import (
    AlreadyClosedError,
    BrokerUnavailableError,
    OperationTimeoutError,
    SdkError,
    service_error,
)
from magnetar.sdk.ports import Network
from magnetar.sdk.service_url import Address
from magnetar.sdk.settings import ClientSettings
from magnetar.sdk.wire.errors import AuthenticationError, FrameError
from magnetar.sdk.wire.frames import (
    FRAME_SLACK_BYTES,
    MESSAGE_BYTES_MAX,
    FrameDecoder,
    encode_command,
)
from magnetar.sdk.wire.hot_commands import PING_FRAME, PONG_FRAME
from magnetar.sdk.wire.pulsar_pb2 import (
    AuthData,
    BaseCommand,
    CommandAuthResponse,
    CommandConnect,
    CommandMessage,
    CommandScalableTopicUpdate,
    CommandSendError,
    CommandSendReceipt,
    FeatureFlags,
    ScalableConsumerAssignment,
)

CLIENT_VERSION = "Magnetar-Python-0.1.0"
PROTOCOL_VERSION = 20

_log = logging.getLogger("magnetar.sdk")

_RECEIPT = BaseCommand.SEND_RECEIPT
_MESSAGE = BaseCommand.MESSAGE

_GATHERED_BYTES_MAX = 64 << 10
"""Bytes gathered before they are sent without waiting for the end of the turn, so that the broker
can begin with them."""

# Responses, and the field that has their request id. ERROR is apart: it has no type of its own.
_ANSWERS: dict[int, str] = {
    BaseCommand.SUCCESS: "success",
    BaseCommand.PRODUCER_SUCCESS: "producer_success",
    BaseCommand.PARTITIONED_METADATA_RESPONSE: "partitionMetadataResponse",
    BaseCommand.LOOKUP_RESPONSE: "lookupTopicResponse",
    BaseCommand.GET_LAST_MESSAGE_ID_RESPONSE: "getLastMessageIdResponse",
    BaseCommand.ACK_RESPONSE: "ackResponse",
    BaseCommand.GET_SCHEMA_RESPONSE: "getSchemaResponse",
    BaseCommand.GET_OR_CREATE_SCHEMA_RESPONSE: "getOrCreateSchemaResponse",
    BaseCommand.GET_TOPICS_OF_NAMESPACE_RESPONSE: "getTopicsOfNamespaceResponse",
    BaseCommand.WATCH_TOPIC_LIST_SUCCESS: "watchTopicListSuccess",
    BaseCommand.CONSUMER_STATS_RESPONSE: "consumerStatsResponse",
    BaseCommand.TC_CLIENT_CONNECT_RESPONSE: "tcClientConnectResponse",
    BaseCommand.NEW_TXN_RESPONSE: "newTxnResponse",
    BaseCommand.ADD_PARTITION_TO_TXN_RESPONSE: "addPartitionToTxnResponse",
    BaseCommand.ADD_SUBSCRIPTION_TO_TXN_RESPONSE: "addSubscriptionToTxnResponse",
    BaseCommand.END_TXN_RESPONSE: "endTxnResponse",
    BaseCommand.END_TXN_ON_PARTITION_RESPONSE: "endTxnOnPartitionResponse",
    BaseCommand.END_TXN_ON_SUBSCRIPTION_RESPONSE: "endTxnOnSubscriptionResponse",
    BaseCommand.SCALABLE_TOPIC_SUBSCRIBE_RESPONSE: "scalableTopicSubscribeResponse",
}


class ProducerListener(Protocol):
    """Callbacks of a producer for events of its connection."""

    def on_receipts(self, receipts: list[CommandSendReceipt]) -> None: ...

    def on_send_error(self, error: CommandSendError) -> None: ...

    def on_session_lost(self, connection: "Connection") -> None: ...


class ConsumerListener(Protocol):
    """Callbacks of a consumer for events of its connection."""

    def on_messages(self, messages: list[tuple[CommandMessage, bytes]]) -> None: ...

    def on_active_change(self, is_active: bool) -> None: ...

    def on_end_of_topic(self) -> None: ...

    def on_session_lost(self, connection: "Connection") -> None: ...


class TopicListener(Protocol):
    """Callbacks of a watcher of topics that are created and deleted."""

    def on_topics_changed(self) -> None: ...

    def on_session_lost(self, connection: "Connection") -> None: ...


class LayoutListener(Protocol):
    """Callbacks of a session that follows the layout of a topic."""

    def on_layout_update(self, update: CommandScalableTopicUpdate) -> None: ...

    def on_session_lost(self, connection: "Connection") -> None: ...


class AssignmentListener(Protocol):
    """Callbacks of a consumer that is registered for segments of a topic."""

    def on_assignment(self, assignment: ScalableConsumerAssignment) -> None: ...

    def on_session_lost(self, connection: "Connection") -> None: ...


class Connection(asyncio.Protocol):
    """One connection to a broker, with its requests and users. Made by `ConnectionPool`."""

    def __init__(self, settings: ClientSettings, *, name: str, proxy_to: str = "") -> None:
        self.name = name
        self.producers: dict[int, ProducerListener] = {}
        self.consumers: dict[int, ConsumerListener] = {}
        self.topic_watchers: dict[int, TopicListener] = {}
        self.layout_sessions: dict[int, LayoutListener] = {}
        self.assignments: dict[int, AssignmentListener] = {}
        self.message_bytes_max = MESSAGE_BYTES_MAX
        self.server_version = ""
        self.protocol_version = 0
        self.watches_topics = False
        """Whether the broker reports topics that are created and deleted (WATCH_TOPIC_LIST)."""
        self.supports_scalable_topics = False
        """Whether the broker gives the layouts of topics (SCALABLE_TOPIC_LOOKUP)."""
        self.deduplicates_copies = False
        """Whether the broker knows copies by their source positions, and confirms those."""
        self.failure: SdkError | None = None
        """Why the connection is closed; None while it is open."""
        self._settings = settings
        self._proxy_to = proxy_to
        self._loop = asyncio.get_running_loop()
        self._decoder = FrameDecoder()
        self._transport: asyncio.Transport | None = None
        self._closed: asyncio.Future[None] = self._loop.create_future()
        self._connected: asyncio.Future[None] = self._loop.create_future()
        self._requests: dict[int, asyncio.Future[BaseCommand]] = {}
        self._next_request_id = 0
        self._out: list[bytes] = []
        self._out_bytes = 0
        self._answering: asyncio.Task[None] | None = None
        self._heard = False
        self._probed = False
        self._keep_alive: asyncio.TimerHandle | None = None

    # -- for users of the connection

    @property
    def is_open(self) -> bool:
        return self.failure is None

    def next_request_id(self) -> int:
        """Return a request id that is unique on this connection, over all kinds of requests."""
        self._next_request_id += 1
        return self._next_request_id - 1

    async def handshake(self) -> None:
        """Send CONNECT and wait for CONNECTED; the caller bounds the time.

        Raises:
            ServiceError: the broker refused, for example the credentials.
            BrokerUnavailableError: the broker closed the connection.
            CredentialsError: the client has no credentials.
        """
        settings = self._settings
        method_name, data = await settings.current_credentials()
        self.send(
            BaseCommand(
                type=BaseCommand.CONNECT,
                connect=CommandConnect(
                    client_version=CLIENT_VERSION,
                    auth_method_name=method_name,
                    auth_data=data or None,
                    protocol_version=PROTOCOL_VERSION,
                    proxy_to_broker_url=self._proxy_to or None,
                    feature_flags=FeatureFlags(
                        supports_repl_dedup_by_lid_and_eid=self._settings.is_replicator,
                        supports_auth_refresh=True,
                        supports_broker_entry_metadata=True,
                    ),
                ),
            )
        )
        try:
            await self._connected
        except AuthenticationError:
            settings.credentials_refused()
            raise
        self._keep_alive = self._loop.call_later(settings.keep_alive_ms / 1000, self._on_keep_alive)

    async def request(
        self, request_id: int, command: BaseCommand, *, timeout_ms: int | None = None
    ) -> BaseCommand:
        """Send a command that carries `request_id`, and wait for its answer.

        Raises:
            ServiceError: the broker answered ERROR.
            BrokerUnavailableError: the connection broke.
            OperationTimeoutError: no answer within `timeout_ms` (the default is
                `operation_timeout_ms`; 0: wait as long as the connection lasts).
        """
        return await self.begin_request(request_id, command, timeout_ms=timeout_ms)

    def begin_request(
        self, request_id: int, command: BaseCommand, *, timeout_ms: int | None = None
    ) -> Coroutine[object, object, BaseCommand]:
        """Send a command at once; return a coroutine that waits for its answer, as `request` does.

        Raises:
            BrokerUnavailableError: the connection is broken.
        """
        if self.failure is not None:
            raise self.failure
        future: asyncio.Future[BaseCommand] = self._loop.create_future()
        self._requests[request_id] = future
        self.send(command)
        return self._answer(request_id, command.type, future, timeout_ms)

    async def _answer(
        self,
        request_id: int,
        kind: BaseCommand.Type,
        future: "asyncio.Future[BaseCommand]",
        timeout_ms: int | None,
    ) -> BaseCommand:
        if timeout_ms is None:
            timeout_ms = self._settings.operation_timeout_ms
        try:
            async with asyncio.timeout(timeout_ms / 1000 or None):
                return await future
        except TimeoutError:
            name = BaseCommand.Type.Name(kind)
            raise OperationTimeoutError(
                f"{self.name} did not answer {name} within {timeout_ms} ms"
            ) from None
        finally:
            self._requests.pop(request_id, None)

    def send(self, command: BaseCommand) -> None:
        """Send a command that has no answer, or whose answer does not come by request id."""
        self.write((encode_command(command),))

    def write(self, parts: Iterable[bytes]) -> None:
        """Send whole, encoded frames, in one or several pieces. Does nothing when closed."""
        out = self._out
        before = len(out)
        out.extend(parts)
        if not before and out:
            self._loop.call_soon(self._flush)
        self._out_bytes += sum(map(len, out[before:]))
        if self._out_bytes > _GATHERED_BYTES_MAX:
            self._flush()

    def fail(self, error: SdkError) -> None:
        """Close at once; all users get `error` as the reason."""
        if self.failure is None:
            self._lose(error)
        if self._transport is not None and not self._closed.done():
            self._transport.abort()

    async def close(self) -> None:
        """Send what is buffered, close, and wait until the connection is gone."""
        transport = self._transport
        if transport is None:
            return
        self._flush()
        if self.failure is None:
            self._lose(BrokerUnavailableError(f"the connection to {self.name} was closed"))
        if not transport.is_closing():  # with TLS, a second close would prevent an abort
            transport.close()
        try:
            async with asyncio.timeout(1):
                await asyncio.shield(self._closed)
        except TimeoutError:
            transport.abort()  # the peer does not read: the rest is not worth waiting for

    # -- from the transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # A cast, because uvloop's transports are no subclasses of asyncio's.
        self._transport = cast(asyncio.Transport, transport)

    def connection_lost(self, error: Exception | None) -> None:
        if self.failure is None:
            reason = f": {error}" if error else ""
            if not self._heard:
                reason += "; it said nothing: does this port want TLS (pulsar+ssl://)?"
            self._lose(BrokerUnavailableError(f"the connection to {self.name} broke{reason}"))
        if not self._closed.done():
            self._closed.set_result(None)

    def data_received(self, data: bytes) -> None:
        self._heard = True
        try:
            commands = self._decoder.feed(data)
        except FrameError as error:
            _log.warning("bad_frame peer=%s: %s", self.name, error)
            if data.startswith(b"HTTP/") and not self._connected.done():
                text = f"{self.name} answers in HTTP: clients connect to the broker's service port"
                self.fail(BrokerUnavailableError(f"{text}, 6650 by default"))
                return
            self.fail(BrokerUnavailableError(f"{self.name} sent an invalid frame: {error}"))
            return
        receipts: list[CommandSendReceipt] = []
        messages: list[tuple[CommandMessage, bytes]] = []
        user_id = -1
        for command, payload in commands:
            kind = command.type
            # Runs of one kind for one user are handed over together, before any other command.
            if kind == _RECEIPT:
                receipt = command.send_receipt
                if (messages or receipt.producer_id != user_id) and (messages or receipts):
                    self._hand_over(user_id, receipts, messages)
                    receipts, messages = [], []
                user_id = receipt.producer_id
                receipts.append(receipt)
            elif kind == _MESSAGE:
                message = command.message
                if (receipts or message.consumer_id != user_id) and (messages or receipts):
                    self._hand_over(user_id, receipts, messages)
                    receipts, messages = [], []
                user_id = message.consumer_id
                messages.append((message, payload))
            else:
                if receipts or messages:
                    self._hand_over(user_id, receipts, messages)
                    receipts, messages = [], []
                self._on_command(kind, command)
        if receipts or messages:
            self._hand_over(user_id, receipts, messages)

    # -- internal

    def _hand_over(
        self,
        user_id: int,
        receipts: list[CommandSendReceipt],
        messages: list[tuple[CommandMessage, bytes]],
    ) -> None:
        if receipts:
            producer = self.producers.get(user_id)
            if producer is not None:
                producer.on_receipts(receipts)
        else:
            consumer = self.consumers.get(user_id)
            if consumer is not None:
                consumer.on_messages(messages)

    def _on_command(self, kind: int, command: BaseCommand) -> None:
        answer = _ANSWERS.get(kind)
        if answer is not None:
            self._on_answer(command, answer)
        elif kind == BaseCommand.PING:
            self.write((PONG_FRAME,))
        elif kind == BaseCommand.ERROR:
            self._on_error(command)
        elif kind == BaseCommand.SEND_ERROR:
            producer = self.producers.get(command.send_error.producer_id)
            if producer is not None:
                producer.on_send_error(command.send_error)
        elif kind == BaseCommand.CLOSE_PRODUCER:
            producer = self.producers.pop(command.close_producer.producer_id, None)
            if producer is not None:
                producer.on_session_lost(self)
        elif kind == BaseCommand.CLOSE_CONSUMER:
            consumer = self.consumers.pop(command.close_consumer.consumer_id, None)
            if consumer is not None:
                consumer.on_session_lost(self)
        elif kind == BaseCommand.ACTIVE_CONSUMER_CHANGE:
            consumer = self.consumers.get(command.active_consumer_change.consumer_id)
            if consumer is not None:
                consumer.on_active_change(command.active_consumer_change.is_active)
        elif kind == BaseCommand.REACHED_END_OF_TOPIC:
            consumer = self.consumers.get(command.reachedEndOfTopic.consumer_id)
            if consumer is not None:
                consumer.on_end_of_topic()
        elif kind == BaseCommand.WATCH_TOPIC_UPDATE:
            watcher = self.topic_watchers.get(command.watchTopicUpdate.watcher_id)
            if watcher is not None:
                watcher.on_topics_changed()
        elif kind == BaseCommand.SCALABLE_TOPIC_UPDATE:
            session = self.layout_sessions.get(command.scalableTopicUpdate.session_id)
            if session is not None:
                session.on_layout_update(command.scalableTopicUpdate)
        elif kind == BaseCommand.SCALABLE_TOPIC_ASSIGNMENT_UPDATE:
            assigned = command.scalableTopicAssignmentUpdate
            registered = self.assignments.get(assigned.consumer_id)
            if registered is not None:
                registered.on_assignment(assigned.assignment)
        elif kind == BaseCommand.CONNECTED:
            self._on_connected(command)
        elif kind == BaseCommand.AUTH_CHALLENGE:
            self._answering = self._loop.create_task(self._answer_challenge())
        elif kind != BaseCommand.PONG:
            _log.debug("ignored_command peer=%s type=%s", self.name, kind)

    def _on_connected(self, command: BaseCommand) -> None:
        connected = command.connected
        self.server_version = connected.server_version
        self.protocol_version = connected.protocol_version
        flags = connected.feature_flags
        self.watches_topics = flags.supports_topic_watchers
        self.supports_scalable_topics = flags.supports_scalable_topics
        self.deduplicates_copies = flags.supports_repl_dedup_by_lid_and_eid
        if connected.HasField("max_message_size") and connected.max_message_size > 0:
            self.message_bytes_max = connected.max_message_size
            # A broker's limit also holds for what it sends; the default stays as a lower bound.
            limit = max(self.message_bytes_max, MESSAGE_BYTES_MAX) + FRAME_SLACK_BYTES
            self._decoder.frame_bytes_max = limit
        if not self._connected.done():
            self._connected.set_result(None)

    def _on_answer(self, command: BaseCommand, name: str) -> None:
        answer = getattr(command, name)
        # A producer that waits for exclusive access gets a second answer when it has that access.
        if command.type == BaseCommand.PRODUCER_SUCCESS and not answer.producer_ready:
            return
        future = self._requests.pop(answer.request_id, None)
        if future is not None and not future.done():
            future.set_result(command)

    def _on_error(self, command: BaseCommand) -> None:
        error = service_error(command.error.error, str(command.error.message))
        future = self._requests.pop(command.error.request_id, None)
        if future is not None:
            if not future.done():
                future.set_exception(error)
        elif not self._connected.done():
            self._connected.set_exception(error)
        elif command.error.request_id >= self._next_request_id:
            self.fail(error)  # tied to no request: the broker is about to close
        # Otherwise no caller waits for the answer any more.

    async def _answer_challenge(self) -> None:
        """Send the fresh credentials that the broker requests; without them it disconnects."""
        try:
            method_name, data = await self._settings.current_credentials()
        except SdkError as error:
            self.fail(error)
            return
        self.send(
            BaseCommand(
                type=BaseCommand.AUTH_RESPONSE,
                authResponse=CommandAuthResponse(
                    client_version=CLIENT_VERSION,
                    response=AuthData(auth_method_name=method_name, auth_data=data),
                ),
            )
        )

    def _on_keep_alive(self) -> None:
        if self.failure is not None:
            return
        if self._probed and not self._heard:
            self.fail(BrokerUnavailableError(f"{self.name} did not answer a PING"))
            return
        # Data from the peer shows that it is alive, but brokers expect frames from clients, too.
        self.write((PING_FRAME,))
        self._probed, self._heard = True, False
        delay_s = self._settings.keep_alive_ms / 1000
        self._keep_alive = self._loop.call_later(delay_s, self._on_keep_alive)

    def _flush(self) -> None:
        out = self._out
        if out and self._transport is not None and self.failure is None:
            self._transport.write(out[0] if len(out) == 1 else b"".join(out))
        out.clear()
        self._out_bytes = 0

    def _lose(self, error: SdkError) -> None:
        """Notify all users once. Requests fail first: a user that reconnects must find none."""
        self.failure = error
        if self._keep_alive is not None:
            self._keep_alive.cancel()
        if not self._connected.done():
            self._connected.set_exception(error)
            self._connected.exception()  # retrieved, in case no caller waits any more
        for future in self._requests.values():
            if not future.done():
                future.set_exception(error)
        self._requests.clear()
        users: list[
            ProducerListener
            | ConsumerListener
            | TopicListener
            | LayoutListener
            | AssignmentListener
        ] = [
            *self.producers.values(),
            *self.consumers.values(),
            *self.topic_watchers.values(),
            *self.layout_sessions.values(),
            *self.assignments.values(),
        ]
        self.producers.clear()
        self.consumers.clear()
        self.topic_watchers.clear()
        self.layout_sessions.clear()
        self.assignments.clear()
        for user in users:
            user.on_session_lost(self)


class ConnectionPool:
    """Opens, shares and closes connections."""

    def __init__(self, settings: ClientSettings, network: Network) -> None:
        self._settings = settings
        self._network = network
        self._connections: dict[tuple[Address, str], Connection] = {}
        self._opening: dict[tuple[Address, str], asyncio.Task[Connection]] = {}
        self._is_closed = False

    async def get(self, address: Address, *, proxy_to: str = "") -> Connection:
        """Return the open connection to an address; `proxy_to` names the broker behind a proxy.

        Raises:
            BrokerUnavailableError: not reachable in time.
            ServiceError: the broker refused the client.
            AlreadyClosedError: the pool is closed.
        """
        if self._is_closed:
            raise self._closed_error()
        key = (address, proxy_to)
        connection = self._connections.get(key)
        if connection is not None and connection.is_open:
            return connection
        task = self._opening.get(key)
        if task is None:
            task = asyncio.create_task(self._open(address, proxy_to))
            self._opening[key] = task
            task.add_done_callback(partial(self._opened, key))
        # Several callers may wait for one connection: cancelling one must not fail the others.
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            # Only `close` cancels the task; the caller itself may not have been cancelled.
            waiting = asyncio.current_task()
            if task.cancelled() and waiting is not None and not waiting.cancelling():
                raise self._closed_error() from None
            raise

    def _opened(self, key: tuple[Address, str], opening: "asyncio.Task[Connection]") -> None:
        self._opening.pop(key, None)
        if not opening.cancelled():
            opening.exception()  # retrieved, even if no caller waits any more

    @property
    def is_open(self) -> bool:
        """Whether any connection is open."""
        return any(each.is_open for each in self._connections.values())

    async def close(self) -> None:
        """Close all connections, and refuse to open others."""
        self._is_closed = True
        opening = list(self._opening.values())
        for task in opening:
            task.cancel()
        try:
            await asyncio.gather(*opening, return_exceptions=True)
            await asyncio.gather(*(each.close() for each in self._connections.values()))
        finally:
            # Even if `close` is cancelled before all connections have closed.
            for each in self._connections.values():
                each.fail(self._closed_error())
            self._connections.clear()

    def _closed_error(self) -> AlreadyClosedError:
        return AlreadyClosedError("the client is closed")

    async def _open(self, address: Address, proxy_to: str) -> Connection:
        settings = self._settings
        timeout_s = settings.connect_timeout_ms / 1000
        connection = Connection(settings, name=str(address), proxy_to=proxy_to)
        try:
            async with asyncio.timeout(timeout_s):
                await self._network.connect(
                    address.host, address.port, lambda: connection, timeout_s=timeout_s
                )
                await connection.handshake()
        except TimeoutError:
            error = BrokerUnavailableError(
                f"{address} did not answer within {settings.connect_timeout_ms} ms"
            )
            connection.fail(error)
            raise error from None
        except OSError as error:
            raise BrokerUnavailableError(f"cannot connect to {address}: {error}") from error
        except BaseException:
            connection.fail(BrokerUnavailableError(f"gave up connecting to {address}"))
            raise
        # Brokers come and go, and so do their addresses: drop lost connections.
        self._connections = {at: each for at, each in self._connections.items() if each.is_open}
        self._connections[address, proxy_to] = connection
        return connection
