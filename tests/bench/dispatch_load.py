"""Consumers that cost next to nothing, in a process of their own: what is measured is the broker.

They speak the protocol over connections of their own: a queue of 1000 messages, more credit when
half of it is used, acknowledgements one by one in groups of a hundred. A MESSAGE is not parsed: the
bytes of its id go into the ACK as they are.

usage: python -m tests.bench.dispatch_load PORT publish TOPIC MESSAGES KEYS
       python -m tests.bench.dispatch_load PORT consume TOPIC MESSAGES TYPE CONSUMERS SUBSCRIPTION
"""

import asyncio
import json
import sys
import time

from magnetar.sdk.wire import BaseCommand, MessageMetadata, encode_command, encode_payload
from magnetar.sdk.wire import pulsar_pb2 as pb
from magnetar.sdk.wire.hot_commands import encode_flow

SIZE = 1024
QUEUE = 1000
ACKS_AT_ONCE = 100
IN_FLIGHT = 1000

_MESSAGE = b"\x08\x09\x4a"
_HOST = "127.0.0.1"


class _Client(asyncio.BufferedProtocol):
    """One connection; `on_frame` gets each frame from its command on."""

    def __init__(self) -> None:
        self._buffer = bytearray(4 << 20)
        self._view = memoryview(self._buffer)
        self._filled = 0
        self.answered: asyncio.Queue[BaseCommand] = asyncio.Queue()
        self.transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        self.send(
            BaseCommand.CONNECT,
            connect=pb.CommandConnect(client_version="bench", protocol_version=20),
        )

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

    def on_frame(self, buffer: bytearray, at: int) -> None:
        size = int.from_bytes(buffer[at - 4 : at], "big")
        command = BaseCommand.FromString(bytes(buffer[at : at + size]))
        if command.type == BaseCommand.PING:
            self.send(BaseCommand.PONG, pong=pb.CommandPong())
        elif command.type != BaseCommand.SEND_RECEIPT:
            self.answered.put_nowait(command)

    def after_read(self) -> None:
        """Everything that has arrived was looked at."""

    def send(self, kind: int, **fields: object) -> None:
        self.transport.write(encode_command(BaseCommand(type=kind, **fields)))  # type: ignore[arg-type]

    async def answer(self, kind: int) -> BaseCommand:
        command = await self.answered.get()
        assert command.type == kind, command
        return command


class _Consumer(_Client):
    def __init__(self, run: "_Run") -> None:
        super().__init__()
        self._run = run
        self._ids: list[bytes] = []
        self._used = 0

    def on_frame(self, buffer: bytearray, at: int) -> None:
        if buffer[at : at + 3] != _MESSAGE:
            super().on_frame(buffer, at)
            return
        # 08 09 4a SIZE 08 CONSUMER 12 SIZE id: the sizes and the number of the consumer are small.
        end = at + 8 + buffer[at + 7]
        self._ids.append(b"\x1a" + buffer[at + 7 : end])

    def after_read(self) -> None:
        ids = self._ids
        if len(ids) >= ACKS_AT_ONCE or self._run.is_near_end:
            self.acknowledge()

    def acknowledge(self) -> None:
        ids, self._ids = self._ids, []
        for first in range(0, len(ids), ACKS_AT_ONCE):
            body = b"\x08\x00\x10\x00" + b"".join(ids[first : first + ACKS_AT_ONCE])
            size = len(body)
            command = b"\x08\x0a\x52" + _varint(size) + body
            head = (4 + len(command)).to_bytes(4, "big") + len(command).to_bytes(4, "big")
            self.transport.write(head + command)
        self._used += len(ids)
        if self._used >= QUEUE // 2:
            self.transport.write(encode_flow(0, self._used))
            self._used = 0
        self._run.count(len(ids))


class _Run:
    """All consumers of one subscription until everything came."""

    def __init__(self, messages: int) -> None:
        self._left = messages
        self.done = asyncio.Event()

    @property
    def is_near_end(self) -> bool:
        return self._left < 20 * QUEUE

    def count(self, messages: int) -> None:
        self._left -= messages
        if self._left <= 0:
            self.done.set()


def _varint(value: int) -> bytes:
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


async def consume(
    port: int, topic: str, messages: int, kind: str, consumers: int, subscription: str
) -> float:
    """Seconds from the first credit to the last acknowledgement."""
    run = _Run(messages)
    clients: list[_Consumer] = []
    for number in range(consumers):
        _, client = await asyncio.get_running_loop().create_connection(
            lambda: _Consumer(run), _HOST, port
        )
        await client.answer(BaseCommand.CONNECTED)
        client.send(
            BaseCommand.SUBSCRIBE,
            subscribe=pb.CommandSubscribe(
                topic=topic,
                subscription=subscription,
                subType=kind,
                consumer_id=0,
                request_id=1,
                consumer_name=f"consumer-{number}",
                initialPosition=pb.CommandSubscribe.Earliest,
            ),
        )
        await client.answer(BaseCommand.SUCCESS)
        clients.append(client)
    started_s = time.perf_counter()
    for client in clients:
        client.transport.write(encode_flow(0, QUEUE))
    async with asyncio.timeout(300):
        await run.done.wait()
    seconds = time.perf_counter() - started_s
    for client in clients:
        client.transport.close()
    return seconds


class _Producer(_Client):
    def __init__(self) -> None:
        super().__init__()
        self.receipts = 0
        self.changed = asyncio.Event()

    def on_frame(self, buffer: bytearray, at: int) -> None:
        if buffer[at : at + 2] == b"\x08\x07":
            self.receipts += 1
        else:
            super().on_frame(buffer, at)

    def after_read(self) -> None:
        self.changed.set()


async def publish(port: int, topic: str, messages: int, keys: int) -> float:
    """Seconds until all messages are durable; message n has the key n modulo `keys`.

    A subscription that nobody uses keeps them all until the end.
    """
    _, client = await asyncio.get_running_loop().create_connection(_Producer, _HOST, port)
    await client.answer(BaseCommand.CONNECTED)
    client.send(
        BaseCommand.SUBSCRIBE,
        subscribe=pb.CommandSubscribe(
            topic=topic,
            subscription="keeper",
            subType=pb.CommandSubscribe.Shared,
            consumer_id=0,
            request_id=0,
            initialPosition=pb.CommandSubscribe.Earliest,
        ),
    )
    await client.answer(BaseCommand.SUCCESS)
    client.send(
        BaseCommand.PRODUCER,
        producer=pb.CommandProducer(topic=topic, producer_id=0, request_id=1),
    )
    name = (await client.answer(BaseCommand.PRODUCER_SUCCESS)).producer_success.producer_name
    body = b"x" * SIZE
    started_s = time.perf_counter()
    for number in range(messages):
        metadata = MessageMetadata(
            producer_name=name,
            sequence_id=number,
            publish_time=1,
            partition_key=f"key-{number % keys}" if keys else None,
        )
        payload = encode_payload(metadata.SerializeToString(), body)
        command = BaseCommand(
            type=BaseCommand.SEND, send=pb.CommandSend(producer_id=0, sequence_id=number)
        ).SerializeToString()
        size = 4 + len(command) + len(payload)
        head = size.to_bytes(4, "big") + len(command).to_bytes(4, "big")
        client.transport.write(head + command + payload)
        while number - client.receipts >= IN_FLIGHT:
            client.changed.clear()
            await client.changed.wait()
    while client.receipts < messages:
        client.changed.clear()
        await client.changed.wait()
    return time.perf_counter() - started_s


def main() -> None:
    port, what, topic, messages = int(sys.argv[1]), sys.argv[2], sys.argv[3], int(sys.argv[4])
    if what == "publish":
        seconds = asyncio.run(publish(port, topic, messages, int(sys.argv[5])))
    else:
        kind, consumers, subscription = sys.argv[5], int(sys.argv[6]), sys.argv[7]
        seconds = asyncio.run(consume(port, topic, messages, kind, consumers, subscription))
    sys.stdout.write(json.dumps({"seconds": seconds, "client_cpu_s": time.process_time()}) + "\n")


if __name__ == "__main__":
    main()
