"""Ten thousand idle WebSocket sessions: the broker's memory, and whether all still work.

Half of them produce and half consume, on a hundred topics; each consumer shares a subscription with
those of its topic. Clients are bare sockets of one process, opened a few hundred at a time. The
memory is the broker's alone. At the end one message goes through each topic: sent by one of its
producers, and received by one of its consumers.
"""

import asyncio
import json
import resource
import time
from base64 import b64encode
from dataclasses import dataclass

from websockets.client import ClientProtocol
from websockets.frames import Frame, Opcode
from websockets.http11 import Response
from websockets.uri import parse_uri

from tests.bench.report import FULL, Effort, Figure, Report
from tests.cluster import ProcessCluster
from tests.processes import HOST

SESSIONS = 10_000
SESSIONS_QUICK = 500
_TOPICS = 100
_TOPICS_QUICK = 10
_MEMORY_MB_MAX = 1_000
_AT_ONCE = 200
_IDLE_S = 5.0
_GIVE_UP_S = 120.0
_SPARE_FILES = 500


class _Client(asyncio.Protocol):
    """One bare client."""

    def __init__(self, url: str) -> None:
        self._core = ClientProtocol(parse_uri(url))
        self._opened: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._texts: asyncio.Queue[str] | None = None
        self._transport: asyncio.Transport | None = None
        self.is_open = False

    async def open(self, port: int) -> None:
        transport, _ = await asyncio.get_running_loop().create_connection(lambda: self, HOST, port)
        self._transport = transport
        self._core.send_request(self._core.connect())
        self._flush()
        await self._opened
        self.is_open = True

    async def ask(self, frame: object) -> str:
        """Send a frame, and wait for one."""
        self._texts = self._texts or asyncio.Queue()
        self._core.send_text(json.dumps(frame).encode())
        self._flush()
        return await self._texts.get()

    def expect(self) -> "asyncio.Queue[str]":
        """Return the queue of frames that come from now on."""
        self._texts = self._texts or asyncio.Queue()
        return self._texts

    def close(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def data_received(self, data: bytes) -> None:
        self._core.receive_data(data)
        for event in self._core.events_received():
            if isinstance(event, Response):
                if event.status_code == 101:
                    self._opened.set_result(None)
                else:
                    self._opened.set_exception(ConnectionError(f"{event.status_code}"))
            elif isinstance(event, Frame) and event.opcode is Opcode.TEXT:
                self.expect().put_nowait(bytes(event.data).decode())
        self._flush()

    def connection_lost(self, error: Exception | None) -> None:
        self.is_open = False
        if not self._opened.done():
            self._opened.set_exception(ConnectionError("lost before the upgrade"))

    def _flush(self) -> None:
        assert self._transport is not None
        for part in self._core.data_to_send():
            if part:
                self._transport.write(part)


@dataclass(frozen=True, slots=True)
class _Measured:
    opened_s: float
    before_mb: float
    after_mb: float
    idle_percent: float
    lost: int
    delivered: int


class WebSocketBench:
    """Measures idle sessions; its figure goes to the report."""

    def __init__(self, report: Report, effort: Effort) -> None:
        self._report = report
        is_full = effort is FULL
        self._sessions = SESSIONS if is_full else SESSIONS_QUICK
        self._topics = _TOPICS if is_full else _TOPICS_QUICK

    def websocket(self) -> None:
        """Open all sessions, wait, and send a message through each topic."""
        needed = self._sessions + _SPARE_FILES
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        if soft < needed:
            # The broker inherits the limit: it needs a descriptor for each session, too.
            resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 2 * needed), hard))
        with ProcessCluster(self._report.directory / "websocket") as cluster:
            measured = asyncio.run(self._measure(cluster))
        is_whole = not measured.lost and measured.delivered == self._topics
        self._report.add(
            Figure(
                name=f"memory of a broker with {self._sessions} idle WebSocket sessions",
                unit="MB",
                value=round(measured.after_mb),
                target=f"<= {_MEMORY_MB_MAX}",
                met=measured.after_mb <= _MEMORY_MB_MAX and is_whole,
                details={
                    "sessions": self._sessions,
                    "topics": self._topics,
                    "before_mb": round(measured.before_mb),
                    "kb_per_session": round(
                        (measured.after_mb - measured.before_mb) * 1000 / self._sessions, 1
                    ),
                    "opened_per_s": round(self._sessions / measured.opened_s),
                    "idle_percent_of_a_core": round(measured.idle_percent, 1),
                    "lost": measured.lost,
                    "topics_that_deliver": measured.delivered,
                },
            )
        )

    async def _measure(self, cluster: ProcessCluster) -> _Measured:
        broker = cluster.servers[-1]
        port = cluster.http_port
        before_mb = broker.resident_bytes() / 1e6
        base = f"ws://{HOST}:{port}/ws/v2"
        topics = [f"persistent/public/default/idle-{n}" for n in range(self._topics)]
        half = self._sessions // 2
        consumers = [
            _Client(f"{base}/consumer/{topics[n % len(topics)]}/s?subscriptionType=Shared")
            for n in range(half)
        ]
        producers = [_Client(f"{base}/producer/{topics[n % len(topics)]}") for n in range(half)]
        clients = [*consumers, *producers]
        turns = asyncio.Semaphore(_AT_ONCE)

        async def opened(client: _Client) -> None:
            async with turns:
                await client.open(port)

        begun_s = time.perf_counter()
        await asyncio.gather(*map(opened, clients))
        opened_s = time.perf_counter() - begun_s
        after_mb = broker.resident_bytes() / 1e6
        cpu_s = broker.cpu_s()
        await asyncio.sleep(_IDLE_S)  # idleness is what is measured
        idle_percent = (broker.cpu_s() - cpu_s) / _IDLE_S * 100
        after_mb = max(after_mb, broker.resident_bytes() / 1e6)
        lost = sum(not client.is_open for client in clients)
        delivered = await self._try_all(topics, consumers, producers)
        for client in clients:
            client.close()
        return _Measured(opened_s, before_mb, after_mb, idle_percent, lost, delivered)

    async def _try_all(
        self, topics: list[str], consumers: list[_Client], producers: list[_Client]
    ) -> int:
        """Return the number of topics through which a message goes."""
        count = 0
        payload = b64encode(b"awake").decode()
        for number in range(len(topics)):
            members = consumers[number :: len(topics)]
            waiting = [asyncio.ensure_future(each.expect().get()) for each in members]
            async with asyncio.timeout(_GIVE_UP_S):
                answer = json.loads(await producers[number].ask({"payload": payload}))
                await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            got = sum(each.done() for each in waiting)
            for each in waiting:
                each.cancel()
            count += answer["result"] == "ok" and got == 1
        return count
