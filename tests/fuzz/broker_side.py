"""Odd and spoiled commands of the binary protocol against a real broker process.

Each case is a stream of commands in one write, with a PING behind each of them: the PONGs tell
how far the broker came. It may end the connection, and what was not reached goes over the next one.
Each request of an unspoiled frame is answered, a healthy client beside it publishes, and after each
round of cases everything that was made is deleted, and the server is looked at.
"""

import asyncio
import random
from collections.abc import Callable
from pathlib import Path

from magnetar.sdk.wire import (
    COMMAND_FIELDS,
    PING_FRAME,
    PONG_FRAME,
    BaseCommand,
    FrameDecoder,
    encode_command,
    pulsar_pb2,
)
from tests.fuzz.findings import Findings
from tests.fuzz.fuzzed_server import FuzzedServer
from tests.fuzz.patience import within
from tests.fuzz.pipelined_http import PipelinedHttp, Request, tried_again
from tests.fuzz.random_commands import NAMESPACE, Input, connect_frame, one_input, opening
from tests.integration.broker.raw_connection import send_frame
from tests.processes import HOST

INPUTS_PER_CASE = 40
CASES_PER_SERVER = 5_000
_CASES_PER_ROUND = 500
_CASES_AT_ONCE = 4
_ANSWER_TIMEOUT_S = 60
_HEALTHY_TOPIC = "persistent://public/default/healthy"
_FIRST_REQUEST_ID = 1_000


class _Stream(asyncio.Protocol):
    """One connection: counts PONGs, notes which requests were answered."""

    def __init__(self) -> None:
        self._decoder = FrameDecoder()
        self._changed = asyncio.Event()
        self.transport: asyncio.Transport | None = None
        self.pongs = 0
        self.answered: set[int] = set()
        self.receipts = 0
        self.is_connected = False
        self.is_closed = False

    @classmethod
    async def open(cls, port: int) -> "_Stream":
        loop = asyncio.get_running_loop()
        transport, stream = await loop.create_connection(cls, HOST, port)
        stream.transport = transport
        return stream

    def data_received(self, data: bytes) -> None:
        for command, _ in self._decoder.feed(data):
            kind = command.type
            if kind == BaseCommand.PONG:
                self.pongs += 1
            elif kind == BaseCommand.PING:
                self.send(PONG_FRAME)
            elif kind == BaseCommand.CONNECTED:
                self.is_connected = True
            elif kind == BaseCommand.SEND_RECEIPT:
                self.receipts += 1
            else:
                inner = getattr(command, COMMAND_FIELDS[kind])
                self.answered.add(getattr(inner, "request_id", -1))
        self._changed.set()

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_closed = True
        self._changed.set()

    def send(self, data: bytes) -> None:
        assert self.transport is not None
        self.transport.write(data)

    def finish_sending(self) -> None:
        assert self.transport is not None
        self.transport.write_eof()

    async def wait_until(self, is_done: Callable[[], bool]) -> bool:
        """Whether that came about before the connection ended.

        Raises:
            TimeoutError: neither, for a long time.
        """
        return await within(_ANSWER_TIMEOUT_S, self._wait_until(is_done))

    async def _wait_until(self, is_done: Callable[[], bool]) -> bool:
        while not is_done():
            if self.is_closed:
                return False
            self._changed.clear()
            await self._changed.wait()
        return True

    def close(self) -> None:
        assert self.transport is not None
        self.transport.abort()


class _Healthy:
    """A client that does everything right, and must not notice the others."""

    def __init__(self, stream: _Stream) -> None:
        self._stream = stream
        self._published = 0

    @classmethod
    async def open(cls, port: int) -> "_Healthy":
        stream = await _Stream.open(port)
        producer = pulsar_pb2.CommandProducer(topic=_HEALTHY_TOPIC, producer_id=1, request_id=7)
        command = BaseCommand(type=BaseCommand.PRODUCER, producer=producer)
        stream.send(connect_frame() + encode_command(command))
        await stream.wait_until(lambda: 7 in stream.answered)
        return cls(stream)

    async def publish(self) -> bool:
        self._stream.send(send_frame(b"well", sequence_id=self._published))
        self._published += 1
        return await self._stream.wait_until(lambda: self._stream.receipts == self._published)

    def close(self) -> None:
        self._stream.close()


def inputs_of(seed: int) -> list[Input]:
    """What one case sends, behind CONNECT."""
    chance = random.Random(seed)
    inputs: list[Input] = []
    if chance.random() < 0.8:
        inputs += opening(chance, _FIRST_REQUEST_ID)
    while len(inputs) < INPUTS_PER_CASE:
        inputs.append(one_input(chance, _FIRST_REQUEST_ID + len(inputs)))
    return inputs


class _Target:
    """The server, and what was found there."""

    def __init__(self, server: FuzzedServer, healthy: _Healthy, findings: Findings) -> None:
        self._server = server
        self._healthy = healthy
        self._findings = findings

    async def run(self, seed: int) -> None:
        """One case, until each input was reached."""
        left = inputs_of(seed)
        self._findings.inputs += len(left)
        chance = random.Random(seed + 1)
        if chance.random() < 0.1:
            stream = await _Stream.open(self._server.port)
            stream.send(connect_frame(chance) + PING_FRAME)
            stream.finish_sending()
            await self._reach(stream, seed, [Input(b"", None, "odd connect")])
        while left and self._server.is_alive:
            stream = await _Stream.open(self._server.port)
            frames = b"".join(each.data + PING_FRAME for each in left)
            stream.send(connect_frame() + frames)
            if any(each.may_swallow for each in left):
                # The broker may wait for the rest of a frame: there is none.
                stream.finish_sending()
            reached = await self._reach(stream, seed, left)
            left = left[reached + 1 :]

    async def _reach(self, stream: _Stream, seed: int, inputs: list[Input]) -> int:
        """How many inputs the connection has survived."""
        try:
            if await stream.wait_until(lambda: stream.pongs >= len(inputs)):
                asked = _asked(inputs)
                await stream.wait_until(lambda: asked <= stream.answered)
        except TimeoutError:
            missed = _asked(inputs) - stream.answered
            silent = [
                each
                for at, each in enumerate(inputs)
                if at >= stream.pongs or each.request_id in missed
            ]
            first = silent[0]
            self._findings.add(
                f"seed {seed}: no answer to {len(silent)} of {len(inputs)}, as {first.name} "
                f"{first.request_id}: {first.data.hex()[:400]}"
            )
            return len(inputs)
        finally:
            stream.close()
        return stream.pongs

    async def round(self, seeds: range) -> None:
        waiting = list(reversed(seeds))

        async def some() -> None:
            while waiting and not self._findings.is_full:
                seed = waiting.pop()
                try:
                    await self.run(seed)
                except OSError as error:
                    self._findings.add(f"seed {seed}: the server cannot be reached: {error}")
                    waiting.clear()
                    return
                if not await self._healthy.publish():
                    self._findings.add(f"about seed {seeds.start}: the healthy client was closed")
                    waiting.clear()

        await asyncio.gather(*(some() for _ in range(_CASES_AT_ONCE)))
        if self._server.is_alive:
            await self._tidy_up()
        self._server.look(f"seeds {seeds.start} to {seeds.stop - 1}")

    async def _tidy_up(self) -> None:
        http = PipelinedHttp(self._server.http_port)
        delete = Request("DELETE", f"/admin/v2/namespaces/{NAMESPACE}?force=true")
        (answer,) = await http.ask([delete])
        # Requests whose connections have ended may still make what is deleted here.
        answer = await tried_again(self._server.http_port, delete, answer)
        if answer.status not in (204, 404):
            self._findings.add(f"cannot tidy up: {answer.status} {answer.body!r}")
        await http.close()
        await make_namespace(self._server.http_port)


def _asked(inputs: list[Input]) -> set[int]:
    """The requests that must be answered. Closing what is being opened takes the place of an
    answer to that."""
    names = {each.name.removeprefix("spoiled ") for each in inputs}
    opened = {"producer": "close_producer", "subscribe": "close_consumer"}
    return {
        each.request_id
        for each in inputs
        if each.request_id is not None and opened.get(each.name) not in names
    }


async def make_namespace(port: int) -> None:
    """Where the topics of the fuzzers are."""
    http = PipelinedHttp(port)
    tenant = b'{"allowedClusters": ["standalone"]}'
    await http.ask(
        [
            Request("PUT", f"/admin/v2/tenants/{NAMESPACE.split('/')[0]}", tenant),
            Request("PUT", f"/admin/v2/namespaces/{NAMESPACE}"),
        ]
    )
    await http.close()


async def fuzz(seeds: range, directory: Path, findings: Findings) -> None:
    """Run the cases of these seeds against a server of their own."""
    with FuzzedServer(directory, findings) as server, findings.of_loop():
        await make_namespace(server.http_port)
        healthy = await _Healthy.open(server.port)
        target = _Target(server, healthy, findings)
        for first in range(seeds.start, seeds.stop, _CASES_PER_ROUND):
            await target.round(range(first, min(first + _CASES_PER_ROUND, seeds.stop)))
            if findings.texts or not server.is_alive:
                break
        healthy.close()
