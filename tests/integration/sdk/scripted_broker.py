"""A broker for one topic that misbehaves on request: real sockets, real frames, scripted faults.

It keeps entries in a list (ledger 1) and serves producers and exclusive subscriptions: enough of
the protocol to show how the client takes lost connections, refused messages and odd answers. What
it does wrong is decided by the test, through `faults` and the methods that close or drop.
"""

import asyncio
import ssl
from collections import deque
from collections.abc import Callable
from types import TracebackType
from typing import Self, cast

from magnetar.sdk.wire import (
    BaseCommand,
    FrameDecoder,
    encode_command,
    encode_message_prefix,
    encode_send_receipts,
    split_payload,
)
from magnetar.sdk.wire.pulsar_pb2 import (
    CommandCloseConsumer,
    CommandCloseProducer,
    CommandConnected,
    CommandError,
    CommandGetLastMessageIdResponse,
    CommandLookupTopicResponse,
    CommandPartitionedTopicMetadataResponse,
    CommandPong,
    CommandProducerSuccess,
    CommandSendError,
    CommandSuccess,
    MessageIdData,
    ServerError,
)

LEDGER_ID = 1
NO_REQUEST = (1 << 64) - 1

Fault = Callable[["Peer", BaseCommand], bool]
"""Gets a command before the broker does; true: it dealt with it, the broker shall ignore it."""


class ScriptedBroker:
    """See the module's text."""

    def __init__(self) -> None:
        self.port = 0
        self.entries: list[bytes] = []
        self.acked: set[int] = set()
        self.commands: list[BaseCommand] = []
        self.faults: deque[Fault] = deque()
        self.peers: list[Peer] = []
        self.partitions = 0
        self.tls: ssl.SSLContext | None = None
        self._server: asyncio.Server | None = None
        self._arrived: list[tuple[Callable[[BaseCommand], bool], asyncio.Future[BaseCommand]]] = []

    @property
    def url(self) -> str:
        return f"pulsar://127.0.0.1:{self.port}"

    @property
    def tls_url(self) -> str:
        return f"pulsar+ssl://127.0.0.1:{self.port}"

    async def __aenter__(self) -> Self:
        await self.listen()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    async def listen(self) -> None:
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(
            lambda: Peer(self), "127.0.0.1", self.port, ssl=self.tls
        )
        self.port = self._server.sockets[0].getsockname()[1]

    def stop(self) -> None:
        """No new connections, and none of the old ones."""
        if self._server is not None:
            self._server.close()
        self.drop_connections()

    def drop_connections(self) -> None:
        for peer in list(self.peers):
            peer.transport.abort()

    async def wait_command(self, kind: int, count: int = 1) -> BaseCommand:
        """Wait until `count` commands of a type have come, and give the last of them."""

        def matches(_: BaseCommand) -> bool:
            return sum(command.type == kind for command in self.commands) >= count

        if not matches(BaseCommand()):
            future: asyncio.Future[BaseCommand] = asyncio.get_running_loop().create_future()
            self._arrived.append((matches, future))
            async with asyncio.timeout(10):
                await future
        return [command for command in self.commands if command.type == kind][count - 1]

    def count(self, kind: int) -> int:
        return sum(command.type == kind for command in self.commands)

    def last_id(self) -> MessageIdData:
        if not self.entries:
            return MessageIdData(ledgerId=NO_REQUEST, entryId=NO_REQUEST)
        metadata, _ = split_payload(self.entries[-1])
        last = MessageIdData(ledgerId=LEDGER_ID, entryId=len(self.entries) - 1)
        if metadata.HasField("num_messages_in_batch"):
            last.batch_index = metadata.num_messages_in_batch - 1
        return last

    def on_command(self, peer: "Peer", command: BaseCommand, payload: bytes) -> None:
        self.commands.append(command)
        if not (self.faults and self.faults[0](peer, command)):
            peer.serve(command, payload)
        for matches, future in self._arrived:
            if not future.done() and matches(command):
                future.set_result(command)


class Peer(asyncio.Protocol):
    """One client's connection."""

    def __init__(self, broker: ScriptedBroker) -> None:
        self.broker = broker
        self.transport: asyncio.Transport = cast(asyncio.Transport, None)
        self.consumer_id = -1
        self.permits = 0
        self.next_entry = 0
        self._decoder = FrameDecoder()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self.broker.peers.append(self)

    @property
    def certificate(self) -> object:
        """The client's; None: it has shown none."""
        return self.transport.get_extra_info("peercert")

    def connection_lost(self, error: Exception | None) -> None:
        self.broker.peers.remove(self)

    def data_received(self, data: bytes) -> None:
        for command, payload in self._decoder.feed(data):
            if not self.transport.is_closing():
                self.broker.on_command(self, command, payload)

    def send(self, kind: BaseCommand.Type, **field: object) -> None:
        command = BaseCommand(type=kind)
        ((name, value),) = field.items()
        getattr(command, name).CopyFrom(value)
        self.transport.write(encode_command(command))

    def refuse(self, request_id: int, code: ServerError, text: str = "no") -> None:
        error = CommandError(request_id=request_id, error=code, message=text)
        self.send(BaseCommand.ERROR, error=error)

    def refuse_send(self, sequence_id: int, code: ServerError) -> None:
        error = CommandSendError(producer_id=0, sequence_id=sequence_id, error=code, message="no")
        self.send(BaseCommand.SEND_ERROR, send_error=error)

    def close_producer(self) -> None:
        close = CommandCloseProducer(producer_id=0, request_id=NO_REQUEST)
        self.send(BaseCommand.CLOSE_PRODUCER, close_producer=close)

    def close_consumer(self) -> None:
        close = CommandCloseConsumer(consumer_id=self.consumer_id, request_id=NO_REQUEST)
        self.consumer_id = -1
        self.send(BaseCommand.CLOSE_CONSUMER, close_consumer=close)

    def succeed(self, request_id: int) -> None:
        self.send(BaseCommand.SUCCESS, success=CommandSuccess(request_id=request_id))

    def serve(self, command: BaseCommand, payload: bytes) -> None:
        kind = command.type
        if kind == BaseCommand.CONNECT:
            connected = CommandConnected(
                server_version="scripted", protocol_version=20, max_message_size=100_000
            )
            self.send(BaseCommand.CONNECTED, connected=connected)
        elif kind == BaseCommand.PING:
            self.send(BaseCommand.PONG, pong=CommandPong())
        elif kind == BaseCommand.PARTITIONED_METADATA:
            self.send(
                BaseCommand.PARTITIONED_METADATA_RESPONSE,
                partitionMetadataResponse=CommandPartitionedTopicMetadataResponse(
                    partitions=self.broker.partitions,
                    request_id=command.partitionMetadata.request_id,
                    response=CommandPartitionedTopicMetadataResponse.Success,
                ),
            )
        elif kind == BaseCommand.LOOKUP:
            self.send(
                BaseCommand.LOOKUP_RESPONSE,
                lookupTopicResponse=CommandLookupTopicResponse(
                    brokerServiceUrl=self.broker.url,
                    response=CommandLookupTopicResponse.Connect,
                    request_id=command.lookupTopic.request_id,
                    authoritative=True,
                ),
            )
        elif kind == BaseCommand.PRODUCER:
            success = CommandProducerSuccess(
                request_id=command.producer.request_id,
                producer_name=command.producer.producer_name or "made-up",
            )
            self.send(BaseCommand.PRODUCER_SUCCESS, producer_success=success)
        elif kind == BaseCommand.SEND:
            self.store(command, payload)
        elif kind == BaseCommand.CLOSE_PRODUCER:
            self.succeed(command.close_producer.request_id)
        else:
            self.serve_consumer(command)

    def store(self, command: BaseCommand, payload: bytes, *, receipt: bool = True) -> None:
        self.broker.entries.append(payload)
        if receipt:
            self.transport.write(
                encode_send_receipts(
                    command.send.producer_id,
                    [command.send.sequence_id],
                    ledger_id=LEDGER_ID,
                    entry_ids=[len(self.broker.entries) - 1],
                    highest_sequence_ids=[command.send.highest_sequence_id],
                )
            )
        for peer in self.broker.peers:
            peer.dispatch()

    def serve_consumer(self, command: BaseCommand) -> None:
        kind = command.type
        if kind == BaseCommand.SUBSCRIBE:
            self.consumer_id, self.permits = command.subscribe.consumer_id, 0
            self.rewind()
            self.succeed(command.subscribe.request_id)
        elif kind == BaseCommand.FLOW:
            self.permits += command.flow.messagePermits
            self.dispatch()
        elif kind == BaseCommand.ACK:
            self.acknowledge(command)
        elif kind == BaseCommand.REDELIVER_UNACKNOWLEDGED_MESSAGES:
            self.rewind()
            self.dispatch(epoch=command.redeliverUnacknowledgedMessages.consumer_epoch)
        elif kind == BaseCommand.SEEK:
            entry_id = command.seek.message_id.entryId
            self.broker.acked = set(range(entry_id))
            self.close_consumer()
            self.succeed(command.seek.request_id)
        elif kind == BaseCommand.CLOSE_CONSUMER:
            self.consumer_id = -1
            self.succeed(command.close_consumer.request_id)
        elif kind == BaseCommand.UNSUBSCRIBE:
            self.consumer_id = -1
            self.succeed(command.unsubscribe.request_id)
        elif kind == BaseCommand.GET_LAST_MESSAGE_ID:
            last = self.broker.last_id()
            self.send(
                BaseCommand.GET_LAST_MESSAGE_ID_RESPONSE,
                getLastMessageIdResponse=CommandGetLastMessageIdResponse(
                    last_message_id=last, request_id=command.getLastMessageId.request_id
                ),
            )

    def acknowledge(self, command: BaseCommand) -> None:
        for message_id in command.ack.message_id:
            if command.ack.ack_type:
                self.broker.acked |= set(range(message_id.entryId + 1))
            elif not message_id.ack_set:
                self.broker.acked.add(message_id.entryId)

    def rewind(self) -> None:
        self.next_entry = 0

    def dispatch(self, *, epoch: int = -1) -> None:
        """Send what is not acknowledged while there is credit; every entry costs one here."""
        while (
            self.consumer_id >= 0
            and self.permits > 0
            and self.next_entry < len(self.broker.entries)
        ):
            entry_id, self.next_entry = self.next_entry, self.next_entry + 1
            if entry_id in self.broker.acked:
                continue
            self.deliver(entry_id, self.broker.entries[entry_id], epoch=epoch)
            self.permits -= 1

    def deliver(self, entry_id: int, payload: bytes, *, epoch: int = -1) -> None:
        prefix = encode_message_prefix(
            self.consumer_id,
            ledger_id=LEDGER_ID,
            entry_id=entry_id,
            payload_bytes=len(payload),
            consumer_epoch=epoch,
        )
        self.transport.write(prefix + payload)


def once(fault: Fault) -> Fault:
    """The fault happens at the first command that it takes, then never again."""
    done = False

    def first(peer: Peer, command: BaseCommand) -> bool:
        nonlocal done
        if done or not fault(peer, command):
            return False
        done = True
        return True

    return first
