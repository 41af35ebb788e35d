"""A consumer that acknowledges every second message and holds the others back, slice by slice.

For each slice it reports the processor time that the broker used for the acknowledgements, the save
of the cursor included, and the broker's memory. The answer to the last command of a slice shows
that the broker took all of them.

usage: python -m tests.bench.acks_load PORT BROKER_PID TOPIC MESSAGES TYPE AT_ONCE SLICES SETTLE_S
"""

import asyncio
import json
import sys
from dataclasses import asdict, dataclass

import uvloop

from magnetar.sdk.wire import BaseCommand
from magnetar.sdk.wire import pulsar_pb2 as pb
from magnetar.sdk.wire.hot_commands import encode_flow, encode_varint
from tests.bench.lean_client import MESSAGE, LeanClient, message_id_at
from tests.processes import cpu_s_of, resident_bytes_of

_HEAD = b"\x08\x00\x10\x00"
_WRITES_AT_ONCE = 200
_TIMEOUT_S = 120


@dataclass(frozen=True, slots=True)
class Slice:
    """One slice: its acknowledgements, the broker's CPU seconds for them, the broker's memory."""

    acks: int
    cpu_s: float
    delivered_mb: float
    resident_mb: float


class _Consumer(LeanClient):
    def __init__(self) -> None:
        super().__init__()
        self.ids: list[bytes] = []
        self._arrived = asyncio.Event()

    def on_frame(self, buffer: bytearray, at: int) -> None:
        if buffer[at : at + 3] == MESSAGE:
            self.ids.append(message_id_at(buffer, at))
        else:
            super().on_frame(buffer, at)

    def after_read(self) -> None:
        self._arrived.set()

    async def receive(self, count: int) -> list[bytes]:
        """Receive so many more messages; return their ids."""
        self.transport.write(encode_flow(0, count))
        async with asyncio.timeout(_TIMEOUT_S):
            while len(self.ids) < count:
                self._arrived.clear()
                await self._arrived.wait()
        ids, self.ids = self.ids, []
        return ids

    async def acknowledge(self, ids: list[bytes], at_once: int) -> None:
        """Acknowledge messages; return when the broker has taken all of them."""
        frames: list[bytes] = []
        for first in range(0, len(ids), at_once):
            body = _HEAD + b"".join([b"\x1a" + each for each in ids[first : first + at_once]])
            command = b"\x08\x0a\x52" + encode_varint(len(body)) + body
            frames.append((4 + len(command)).to_bytes(4, "big") + len(command).to_bytes(4, "big"))
            frames.append(command)
            if len(frames) >= 2 * _WRITES_AT_ONCE:
                self.transport.write(b"".join(frames))
                frames.clear()
                await self.writable.wait()
        self.transport.write(b"".join(frames))
        self.send(
            BaseCommand.ACK,
            ack=pb.CommandAck(
                consumer_id=0,
                ack_type=pb.CommandAck.Individual,
                message_id=[pb.MessageIdData.FromString(ids[-1][1:])],
                request_id=self.request_id(),
            ),
        )
        await self.answer(BaseCommand.ACK_RESPONSE)


async def _run(port: int, pid: int, topic: str, messages: int, kind: str) -> list[Slice]:
    at_once, count, settle_s = int(sys.argv[6]), int(sys.argv[7]), float(sys.argv[8])
    client = await _Consumer.connect(port)
    await client.subscribe(topic, f"{kind}-{at_once}", kind=kind)
    slices: list[Slice] = []
    for _ in range(count):
        ids = (await client.receive(messages // count))[1::2]
        delivered_mb, before_s = resident_bytes_of(pid) / 1e6, cpu_s_of(pid)
        await client.acknowledge(ids, at_once)
        await asyncio.sleep(settle_s)
        cpu_s, resident_mb = cpu_s_of(pid) - before_s, resident_bytes_of(pid) / 1e6
        slices.append(Slice(len(ids), cpu_s, delivered_mb, resident_mb))
    client.transport.close()
    return slices


def main() -> None:
    port, pid, topic, messages = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], int(sys.argv[4])
    slices = uvloop.run(_run(port, pid, topic, messages, sys.argv[5]))
    sys.stdout.write(json.dumps([asdict(each) for each in slices]) + "\n")


if __name__ == "__main__":
    main()
