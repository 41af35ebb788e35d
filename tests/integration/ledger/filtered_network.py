"""A network on which the answers of bookies are changed or lost on their way."""

import asyncio
from collections.abc import Callable
from functools import partial
from struct import unpack

from magnetar.ledger.ports import Listener
from magnetar.ledger.system import SystemNetwork
from magnetar.ledger.wire import Frame, FrameDecoder, Op, encode_frame
from magnetar.ledger.wire_adds import NO_ID, decode_outcome, encode_outcome

Filter = Callable[[int, Frame], Frame | None]
"""Gets the bookie's port and its answer; returns what arrives, or None if nothing does."""


class FilteredNetwork(SystemNetwork):
    """Every frame from a bookie goes through `filter`, which a test may replace at any time.

    Outcomes of adds come as replies to an ADD, also when one frame brings many of them. What
    `holds` wants is kept until `release`, instead.
    """

    def __init__(self) -> None:
        self.filter: Filter = lambda port, frame: frame
        self.holds: Callable[[Frame], bool] = lambda frame: False
        self.held: list[Callable[[], None]] = []

    def release(self) -> None:
        """Hold nothing any more, and deliver what was held, in order."""
        self.holds = lambda frame: False
        held, self.held = self.held, []
        for deliver in held:
            deliver()

    async def connect(
        self, host: str, port: int, factory: Callable[[], asyncio.Protocol], *, timeout_s: float
    ) -> asyncio.Transport:
        return await super().connect(
            host, port, lambda: _Filtered(self, port, factory()), timeout_s=timeout_s
        )

    async def listen(
        self, host: str, port: int, factory: Callable[[], asyncio.Protocol]
    ) -> Listener:
        raise AssertionError("a client does not listen")


class _Filtered(asyncio.Protocol):
    def __init__(self, network: FilteredNetwork, port: int, inner: asyncio.Protocol) -> None:
        self._network = network
        self._port = port
        self._inner = inner
        self._decoder = FrameDecoder()
        self.connection_made = inner.connection_made  # type: ignore[method-assign]
        self.connection_lost = inner.connection_lost  # type: ignore[method-assign]

    def data_received(self, data: bytes) -> None:
        for frame in self._decoder.feed(data):
            for one in _outcomes(frame) if frame.op == Op.ADDS else [frame]:
                self._on_frame(one, is_shared=frame.op == Op.ADDS)

    def _on_frame(self, frame: Frame, *, is_shared: bool) -> None:
        arriving = self._network.filter(self._port, frame)
        if arriving is None:
            return
        encode = _encode_shared if is_shared else _encode
        deliver = partial(self._inner.data_received, encode(arriving))
        if self._network.holds(arriving):
            self._network.held.append(deliver)
        else:
            deliver()


def _outcomes(frame: Frame) -> list[Frame]:
    """A reply about adds of several ledgers as one per add, each as if it were to an ADD."""
    pairs, text = decode_outcome(frame.body)
    ids = [unpack(">qq", pair) for pair in pairs]
    return [
        frame._replace(op=Op.ADD, ledger_id=ledger_id, entry_id=entry_id, body=text)
        for ledger_id, entry_id in ids
    ]


def _encode_shared(frame: Frame) -> bytes:
    body = encode_outcome((frame.ledger_id, frame.entry_id), frame.body)
    return _encode(frame._replace(op=Op.ADDS, ledger_id=NO_ID, entry_id=NO_ID, body=body))


def _encode(frame: Frame) -> bytes:
    return encode_frame(
        frame.op | 0x80,
        request_id=frame.request_id,
        ledger_id=frame.ledger_id,
        entry_id=frame.entry_id,
        flags=frame.flags,
        status=frame.status,
        body=frame.body,
    )
