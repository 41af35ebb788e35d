"""Clients that cost next to nothing, so that the broker is measured and not its load.

A connection speaks the protocol, reads into one buffer, and passes on frames by their position in
it; frequent frames are not parsed. Each load (`*_load.py`) decides what to send and when.
"""

import asyncio
import time
from typing import TypeVar, cast

from magnetar.sdk.wire import BaseCommand, MessageMetadata, encode_command
from magnetar.sdk.wire import pulsar_pb2 as pb
from magnetar.sdk.wire.hot_commands import SendEncoder, publish_time_field

HOST = "127.0.0.1"
MESSAGE = b"\x08\x09\x4a"
"""First bytes of the command of a MESSAGE."""
RECEIPT = b"\x08\x07\x3a"

_BUFFER_BYTES = 4 << 20
_LOOKUPS_MAX = 10

Client = TypeVar("Client", bound="LeanClient")


class LeanClient(asyncio.BufferedProtocol):
    """One connection; `on_frame` gets each frame, from its command on."""

    def __init__(self) -> None:
        self._buffer = bytearray(_BUFFER_BYTES)
        self._view = memoryview(self._buffer)
        self._filled = 0
        self._answered: asyncio.Queue[BaseCommand] = asyncio.Queue()
        self._requests = 0
        self.writable = asyncio.Event()
        """Cleared while more is written than the broker reads."""
        self.writable.set()
        self.transport: asyncio.Transport

    @classmethod
    async def connect(cls: type[Client], port: int, *arguments: object) -> Client:
        """Connect and complete the handshake; the arguments are those of the class."""
        _, client = await asyncio.get_running_loop().create_connection(
            lambda: cls(*arguments), HOST, port
        )
        client.send(
            BaseCommand.CONNECT,
            connect=pb.CommandConnect(client_version="bench", protocol_version=20),
        )
        await client.answer(BaseCommand.CONNECTED)
        return client

    # asyncio's side

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # A cast, not a check: uvloop's transports do not derive from asyncio's.
        self.transport = cast(asyncio.Transport, transport)

    def pause_writing(self) -> None:
        self.writable.clear()

    def resume_writing(self) -> None:
        self.writable.set()

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._view[self._filled :]

    def buffer_updated(self, nbytes: int) -> None:
        self._filled += nbytes
        buffer, filled, at = self._buffer, self._filled, 0
        while filled - at >= 8:
            end = at + 4 + int.from_bytes(buffer[at : at + 4], "big")
            if end > filled:
                break
            self.on_frame(buffer, at + 8)
            at = end
        if at:
            self._buffer[: filled - at] = buffer[at:filled]
            self._filled = filled - at
        self.after_read()

    # What loads override

    def on_frame(self, buffer: bytearray, at: int) -> None:
        """Handle one frame, whose command begins at `at`."""
        size = int.from_bytes(buffer[at - 4 : at], "big")
        command = BaseCommand.FromString(bytes(buffer[at : at + size]))
        if command.type == BaseCommand.PING:
            self.send(BaseCommand.PONG, pong=pb.CommandPong())
        else:
            self._answered.put_nowait(command)

    def after_read(self) -> None:
        """Called when all frames that have arrived were handled."""

    # Commands

    def send(self, kind: int, **fields: object) -> None:
        self.transport.write(encode_command(BaseCommand(type=kind, **fields)))  # type: ignore[arg-type]

    async def answer(self, kind: int) -> BaseCommand:
        command = await self._answered.get()
        assert command.type == kind, command
        return command

    def request_id(self) -> int:
        self._requests += 1
        return self._requests

    async def look_up(self, topic: str) -> None:
        """Look the topic up, so that the broker owns it: some brokers serve no topic before a
        lookup."""
        is_authoritative = False
        for _ in range(_LOOKUPS_MAX):
            self.send(
                BaseCommand.LOOKUP,
                lookupTopic=pb.CommandLookupTopic(
                    topic=topic, request_id=self.request_id(), authoritative=is_authoritative
                ),
            )
            found = (await self.answer(BaseCommand.LOOKUP_RESPONSE)).lookupTopicResponse
            if found.response == found.Connect:
                return
            assert found.response == found.Redirect, found
            is_authoritative = found.authoritative
        raise AssertionError(f"{topic}: {_LOOKUPS_MAX} lookups, and each led on")

    async def subscribe(
        self, topic: str, subscription: str, *, kind: str = "Shared", consumer_id: int = 0
    ) -> None:
        """Subscribe from the first message of the topic."""
        self.send(
            BaseCommand.SUBSCRIBE,
            subscribe=pb.CommandSubscribe(
                topic=topic,
                subscription=subscription,
                subType=kind,
                consumer_id=consumer_id,
                request_id=self.request_id(),
                consumer_name=f"consumer-{consumer_id}",
                initialPosition=pb.CommandSubscribe.Earliest,
            ),
        )
        await self.answer(BaseCommand.SUCCESS)

    async def create_producer(self, topic: str, producer_id: int = 0) -> str:
        """Create a producer; return the name that the broker gave it."""
        self.send(
            BaseCommand.PRODUCER,
            producer=pb.CommandProducer(
                topic=topic, producer_id=producer_id, request_id=self.request_id()
            ),
        )
        answer = await self.answer(BaseCommand.PRODUCER_SUCCESS)
        return answer.producer_success.producer_name


def message_id_at(buffer: bytearray, at: int) -> bytes:
    """Return the bytes of a MESSAGE's message id, preceded by their size; its command begins at
    `at`.

    08 09 4a SIZE 08 CONSUMER 12 SIZE id: the sizes are one byte, the number of the consumer may
    have more.
    """
    while buffer[at + 5] & 0x80:
        at += 1
    return bytes(buffer[at + 7 : at + 8 + buffer[at + 7]])


def varint_at(buffer: bytearray, at: int) -> tuple[int, int]:
    """Return a varint, and the position after it."""
    value = shift = 0
    while True:
        byte = buffer[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7


class _Producer(LeanClient):
    """Counts receipts."""

    def __init__(self) -> None:
        super().__init__()
        self.receipts = 0
        self.changed = asyncio.Event()

    def on_frame(self, buffer: bytearray, at: int) -> None:
        if buffer[at : at + 3] == RECEIPT:
            self.receipts += 1
        else:
            super().on_frame(buffer, at)

    def after_read(self) -> None:
        self.changed.set()


async def publish(
    port: int, topic: str, messages: int, *, size: int, in_flight: int, keys: int = 0
) -> float:
    """Publish messages; return the seconds until all are durable. Message n has the key n modulo
    `keys`.

    An unused subscription keeps all messages until the end.
    """
    client = await _Producer.connect(port)
    await client.subscribe(topic, "keeper")
    name = await client.create_producer(topic)
    encoder, body, time_field = SendEncoder(0, name), b"x" * size, publish_time_field(1)
    key_fields = [
        MessageMetadata(partition_key=f"key-{number}").SerializePartialToString()
        for number in range(keys)
    ] or [b""]
    started_s = time.perf_counter()
    for number in range(messages):
        prefix = encoder.encode_prefix(
            body,
            sequence_id=number,
            publish_time=time_field,
            extra=key_fields[number % len(key_fields)],
        )
        client.transport.write(prefix + body)
        while number - client.receipts >= in_flight:
            client.changed.clear()
            await client.changed.wait()
    while client.receipts < messages:
        client.changed.clear()
        await client.changed.wait()
    seconds = time.perf_counter() - started_s
    client.transport.close()
    return seconds
