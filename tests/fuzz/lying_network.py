"""A network on which some bookies lie: their answers are spoiled, swapped, repeated or lost.

The bookies behind it are real and honest; what they store is what they were sent. So a test knows
the truth, and the client must never report anything else.
"""

import asyncio
import random
from collections.abc import Callable
from typing import cast

from magnetar.ledger.ports import Listener
from magnetar.ledger.system import SystemNetwork
from magnetar.ledger.wire import RESPONSE, Frame, FrameDecoder, Status, encode_frame
from tests.fuzz import mutations

_KEPT_MAX = 20


class LyingNetwork(SystemNetwork):
    """Bookies at the ports of `liars` spoil about `share` of their answers."""

    def __init__(self, source: random.Random, liars: set[int], share: float) -> None:
        self.random = source
        self.liars = liars
        self.share = share
        self.heard: list[Frame] = []
        """Some answers of all bookies so far, to be repeated in the wrong place."""

    async def connect(
        self, host: str, port: int, factory: Callable[[], asyncio.Protocol], *, timeout_s: float
    ) -> asyncio.Transport:
        return await super().connect(
            host, port, lambda: _Connection(self, port, factory()), timeout_s=timeout_s
        )

    async def listen(
        self, host: str, port: int, factory: Callable[[], asyncio.Protocol]
    ) -> Listener:
        raise AssertionError("a client does not listen")


class _Connection(asyncio.Protocol):
    def __init__(self, network: LyingNetwork, port: int, inner: asyncio.Protocol) -> None:
        self._network = network
        self._is_liar = port in network.liars
        self._inner = inner
        self._decoder = FrameDecoder()
        self._transport: asyncio.Transport | None = None
        self._held: Frame | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._inner.connection_made(transport)

    def connection_lost(self, exc: Exception | None) -> None:
        self._inner.connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        network = self._network
        for frame in self._decoder.feed(data):
            if len(network.heard) < _KEPT_MAX:
                network.heard.append(frame)
            else:
                network.heard[network.random.randrange(_KEPT_MAX)] = frame
            if self._is_liar and network.random.random() < network.share:
                arriving = self._lie(frame)
            else:
                arriving = encode(frame)
            assert self._transport is not None
            if arriving and not self._transport.is_closing():
                self._inner.data_received(arriving)

    def _lie(self, frame: Frame) -> bytes:
        """The bytes that arrive instead of the frame; none: it is lost, or comes later."""
        source = self._network.random
        match source.randrange(10):
            case 0 | 1 | 2:
                return source.choice(mutations.FRAMED)(encode(frame), source)
            case 3:
                return source.choice(mutations.BREAKING)(encode(frame), source)
            case 4:  # a true answer, to another question
                body = source.choice(self._network.heard).body
                return encode(frame._replace(body=body, status=Status.OK))
            case 5:  # the whole of another answer
                other = source.choice(self._network.heard)
                return encode(other._replace(request_id=frame.request_id))
            case 6:  # two answers change places
                held, self._held = self._held, frame
                if held is None:
                    return b""
                return encode(frame._replace(request_id=held.request_id)) + encode(
                    held._replace(request_id=frame.request_id)
                )
            case 7:
                return encode(frame._replace(status=source.randrange(12), body=b"no"))
            case 8:
                assert self._transport is not None
                if source.random() < 0.3:
                    self._transport.abort()
                return b""
            case _:  # answers that nobody asked for, then the true one
                unasked = encode(frame._replace(request_id=source.getrandbits(64)))
                return unasked + encode(frame)


def encode(frame: Frame) -> bytes:
    """An answer as it travels."""
    return encode_frame(
        frame.op | RESPONSE,
        request_id=frame.request_id,
        ledger_id=frame.ledger_id,
        entry_id=frame.entry_id,
        flags=frame.flags,
        status=frame.status,
        body=frame.body,
    )
