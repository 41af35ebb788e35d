"""A network on which both ends of a connection prove that they know the cluster's shared secret.

This is the shell around `secret_handshake.py`. It holds a connection until the handshake is done,
and then hands it to the protocol, which sees a new connection.
"""

import asyncio
import random
from collections.abc import Callable
from typing import cast

import structlog

from magnetar.ledger.errors import BookieProtocolError, SecretRefusedError
from magnetar.ledger.ports import Listener, Network
from magnetar.ledger.secret_handshake import BookieHandshake, ClientHandshake, is_auth
from magnetar.ledger.wire import HEADER_BYTES, FrameDecoder

_log = structlog.get_logger(__name__)

_FRAME_BYTES_MAX = 4096
"""Limit of a frame of the handshake; the text of a refusal fits, too."""
Factory = Callable[[], asyncio.Protocol]


class SecretNetwork:
    """Stream connections between peers that know the secret."""

    def __init__(
        self,
        base: Network,
        secrets: tuple[bytes, ...],
        *,
        source: random.Random,
        handshake_timeout_s: float,
        handshakes_max: int,
        is_optional: bool = False,
    ) -> None:
        """Make the network.

        Args:
            secrets: this process uses the first and accepts all; may be replaced later.
            handshakes_max: incoming handshakes at a time; further connections are aborted.
            is_optional: serve clients without a proof, and use bookies without a secret.
        """
        self.secrets = secrets
        self.is_optional = is_optional
        self._base = base
        self._source = source
        self._timeout_s = handshake_timeout_s
        self._handshakes_max = handshakes_max
        self._handshakes = 0

    async def connect(
        self, host: str, port: int, factory: Factory, *, timeout_s: float
    ) -> asyncio.Transport:
        """Connect and complete the handshake.

        Raises:
            SecretRefusedError: a ConnectionError; the other side knows another secret, or none.
            ConnectionError, TimeoutError
        """
        side = _ClientSide(
            ClientHandshake(self.secrets[0], self._source, is_optional=self.is_optional)
        )
        async with asyncio.timeout(timeout_s):
            transport = await self._base.connect(host, port, lambda: side, timeout_s=timeout_s)
            try:
                await side.done
                if side.is_lost:
                    raise ConnectionError("the connection was lost as soon as it was made")
            except BaseException:
                transport.abort()
                raise
        protocol = factory()
        transport.set_protocol(protocol)
        protocol.connection_made(transport)
        return transport

    async def listen(self, host: str, port: int, factory: Factory) -> Listener:
        return await self._base.listen(host, port, lambda: _BookieSide(self, factory))

    # Incoming connections

    def handshake(self) -> BookieHandshake | None:
        """Begin an incoming handshake; None if there are too many."""
        if self._handshakes >= self._handshakes_max:
            return None
        self._handshakes += 1
        return BookieHandshake(self.secrets, self._source)

    def handshake_ended(self) -> None:
        self._handshakes -= 1

    @property
    def timeout_s(self) -> float:
        """Time limit for a client's handshake."""
        return self._timeout_s


class _ClientSide(asyncio.Protocol):
    def __init__(self, handshake: ClientHandshake) -> None:
        self._handshake = handshake
        self._decoder = FrameDecoder(_FRAME_BYTES_MAX)
        self._transport: asyncio.Transport | None = None
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.is_lost = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.write(self._handshake.begin())

    def data_received(self, data: bytes) -> None:
        assert self._transport is not None
        try:
            for frame in self._decoder.feed(data):
                answer = self._handshake.on_frame(frame)
                if answer is not None:
                    self._transport.write(answer)
                elif not self.done.done():
                    self.done.set_result(None)
        except BookieProtocolError as error:
            self._fail(SecretRefusedError(f"the bookie did not answer the handshake: {error}"))
        except SecretRefusedError as error:
            self._fail(error)

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_lost = True
        self._fail(ConnectionError(f"the connection was lost in the handshake: {exc or 'closed'}"))

    def _fail(self, error: Exception) -> None:
        if not self.done.done():
            self.done.set_exception(error)


class _BookieSide(asyncio.Protocol):
    def __init__(self, network: SecretNetwork, factory: Factory) -> None:
        self._network = network
        self._factory = factory
        self._decoder = FrameDecoder(_FRAME_BYTES_MAX)
        self._begun: bytes | None = b"" if network.is_optional else None
        """Bytes received before it is known whether the peer sends a handshake; None if it must."""
        self._handshake: BookieHandshake | None = None
        self._transport: asyncio.Transport | None = None
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # A cast, not a check: uvloop's transports do not derive from asyncio's.
        transport = cast(asyncio.Transport, transport)
        self._handshake = self._network.handshake()
        if self._handshake is None:
            transport.abort()
            return
        self._transport = transport
        self._timer = asyncio.get_running_loop().call_later(
            self._network.timeout_s, transport.abort
        )

    def data_received(self, data: bytes) -> None:
        transport, handshake = self._transport, self._handshake
        if transport is None or handshake is None or handshake.is_refused:
            return
        if self._begun is not None:
            self._begun += data
            if len(self._begun) < HEADER_BYTES:
                return
            data, self._begun = self._begun, None
            if not is_auth(data):
                self._hand_over(transport).data_received(data)
                return
        try:
            for frame in self._decoder.feed(data):
                if handshake.is_done:
                    raise BookieProtocolError("more than the handshake before it was answered")
                transport.write(handshake.on_frame(frame))
                if handshake.is_refused:
                    self._refused()
                    return
        except BookieProtocolError as error:
            _log.warning("bookie_handshake_malformed", peer=self._peer(), error=str(error))
            transport.abort()
            return
        if handshake.is_done:
            self._hand_over(transport)

    def connection_lost(self, exc: Exception | None) -> None:
        self._end()

    def _refused(self) -> None:
        _log.warning("bookie_client_refused", peer=self._peer(), reason="no proof of the secret")
        assert self._transport is not None
        if not self._transport.is_closing():  # with TLS, a second close forbids an abort
            self._transport.close()

    def _hand_over(self, transport: asyncio.Transport) -> asyncio.Protocol:
        self._end()
        protocol = self._factory()
        transport.set_protocol(protocol)
        protocol.connection_made(transport)
        return protocol

    def _end(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._handshake is not None:
            self._handshake = None
            self._network.handshake_ended()

    def _peer(self) -> str:
        return str(self._transport.get_extra_info("peername")) if self._transport else "?"
