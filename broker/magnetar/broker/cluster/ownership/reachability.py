"""Probe of other brokers: whether one serves, before clients are sent there.

The lease of a broker that was killed or stopped exists until its session ends. A client that is
sent there fails, waits longer and longer between its tries, and is late when another broker has the
topic. A lookup that waits instead is answered at that very moment.

The probe is the handshake of a client: a process that is stopped still accepts connections, and a
broker that has lost contact with the metadata store says so in its answer.
"""

import asyncio
from functools import partial

from magnetar.broker.base.listeners import host_and_port
from magnetar.broker.base.replies import WITHOUT_LEASE
from magnetar.ledger.ports import Clock, Network
from magnetar.sdk.wire import FRAME_BYTES_MAX, BaseCommand, FrameDecoder, FrameError, encode_command
from magnetar.sdk.wire.pulsar_pb2 import CommandConnect, ServerError

PROBE = "Magnetar-broker"
"""Client version by which a broker recognises another one's probe. It has no credentials: a refusal
is an answer, too."""

_CONNECT = encode_command(
    BaseCommand(
        type=BaseCommand.CONNECT,
        connect=CommandConnect(client_version=PROBE, protocol_version=20),
    )
)


class _Handshake(asyncio.Protocol):
    """Sends the handshake, and waits for the answer."""

    def __init__(self) -> None:
        self.answered: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._decoder = FrameDecoder(FRAME_BYTES_MAX)

    def data_received(self, data: bytes) -> None:
        try:
            for command, _ in self._decoder.feed(data):
                self._answer(_is_serving(command))
        except FrameError:
            self._answer(False)

    def connection_lost(self, exc: Exception | None) -> None:
        self._answer(False)

    def _answer(self, is_there: bool) -> None:
        if not self.answered.done():
            self.answered.set_result(is_there)


def _is_serving(command: BaseCommand) -> bool:
    """Whether an answer comes from a broker that may serve."""
    if command.type == BaseCommand.ERROR:
        return (
            command.error.error == ServerError.AuthenticationError
            and not command.error.message.endswith(WITHOUT_LEASE)
        )
    return command.type == BaseCommand.CONNECTED and not (
        command.connected.server_version.endswith(WITHOUT_LEASE)
    )


class Reachability:
    """Probes brokers on demand; an answer is reused for `fresh_s` seconds."""

    def __init__(self, network: Network, *, clock: Clock, timeout_s: float, fresh_s: float) -> None:
        self._network = network
        self._clock = clock
        self._timeout_s = timeout_s
        self._fresh_s = fresh_s
        self._answers: dict[str, tuple[bool, float]] = {}
        """By URL: whether it answered, and until when that is reused."""
        self._asking: dict[str, asyncio.Task[bool]] = {}

    async def answers(self, url: str) -> bool:
        """Return whether a broker answers at pulsar://host:port."""
        known = self._answers.get(url)
        if known is not None and self._clock.monotonic_s() < known[1]:
            return known[0]
        asking = self._asking.get(url)
        if asking is None:
            asking = self._asking[url] = asyncio.create_task(self._ask(url), name=f"ask-{url}")
            asking.add_done_callback(partial(self._asked, url))
        return await asyncio.shield(asking)

    def _asked(self, url: str, asking: "asyncio.Task[bool]") -> None:
        del self._asking[url]
        if asking.cancelled() or asking.exception() is not None:
            return
        now_s = self._clock.monotonic_s()
        self._answers = {each: known for each, known in self._answers.items() if now_s < known[1]}
        self._answers[url] = (asking.result(), now_s + self._fresh_s)

    async def _ask(self, url: str) -> bool:
        try:
            host, port = host_and_port(url)
            async with asyncio.timeout(self._timeout_s):
                handshake = _Handshake()
                transport = await self._network.connect(
                    host, port, lambda: handshake, timeout_s=self._timeout_s
                )
                try:
                    transport.write(_CONNECT)
                    return await handshake.answered
                finally:
                    transport.close()
        except (OSError, TimeoutError, ValueError):
            return False

    def close(self) -> None:
        for asking in self._asking.values():
            asking.cancel()
