"""A blocking stream to a bookie, as the cluster wants it.

Plain or over TLS, where both sides show a certificate; and after the handshake of the shared secret
if there is one.

The files lie on the executors, under the same paths on all of them: slices, which Spark keeps in
many places, name them and hold no secret.
"""

import os
import random
import socket
import ssl
import struct
from pathlib import Path

from magnetar.ledger.errors import (
    BookieProtocolError,
    SecretRefusedError,
    SharedSecretConfigError,
)
from magnetar.ledger.secret_handshake import ClientHandshake, parse_secrets
from magnetar.ledger.wire import FrameDecoder
from magnetar.sdk.spark.errors import OptionError
from magnetar.sdk.spark.slices import Address, BookieSecurity

_TIMEVAL = struct.Struct("@ll")
_LENGTH = struct.Struct(">I")
_TLS_RECORD_BYTES = 16 * 1024
"""More than that does not come at once."""
_HANDSHAKE_BYTES_MAX = 4096


class BookieStream:
    """One connection. For one thread; every method raises OSError."""

    def __init__(self, connected: socket.socket) -> None:
        self._socket = connected
        self._is_tls = isinstance(connected, ssl.SSLSocket)
        self._seen = b""
        """Taken from a connection that cannot be looked into."""

    def send(self, data: bytes) -> None:
        self._socket.sendall(data)

    def look(self, size: int) -> bytes:
        """The next few bytes, which the next `receive` begins with."""
        if self._is_tls:
            self._seen = self.receive(size)
            return self._seen
        data = self._socket.recv(size, socket.MSG_PEEK | socket.MSG_WAITALL)
        if len(data) < size:
            raise ConnectionError("the connection was closed")
        return data

    def receive(self, size: int) -> bytes:
        """Exactly so many bytes."""
        seen, self._seen = self._seen, b""
        size -= len(seen)
        pieces_bytes, flags = (_TLS_RECORD_BYTES, 0) if self._is_tls else (size, socket.MSG_WAITALL)
        data = self._socket.recv(min(size, pieces_bytes), flags)
        if len(data) == size and not seen:
            return data
        parts = [seen, data]
        missing = size - len(data)
        while missing:
            if not parts[-1]:
                raise ConnectionError("the connection was closed")
            parts.append(self._socket.recv(min(missing, pieces_bytes), flags))
            missing -= len(parts[-1])
        return b"".join(parts)

    def close(self) -> None:
        self._socket.close()


class BookieConnector:
    """Makes connections; reads its files once."""

    def __init__(self, security: BookieSecurity, *, timeout_ms: int) -> None:
        """`timeout_ms`: for connecting, and for each send and receive.

        Raises:
            OptionError: a file cannot be used.
        """
        self._timeout_ms = timeout_ms
        self._tls = _context(security) if security.tls_trust_file else None
        self._secret = _secret_in(security.secret_file) if security.secret_file else b""

    def connect(self, address: Address) -> BookieStream:
        """
        Raises:
            OSError: also if one of the two does not accept the other's certificate or secret.
        """
        timeout_s = self._timeout_ms / 1000
        made = socket.create_connection((address.host, address.port), timeout=timeout_s)
        try:
            made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if self._tls is not None:
                made = self._tls.wrap_socket(made, server_hostname=address.host)
            else:
                self._leave_time_to_the_kernel(made)
            stream = BookieStream(made)
            if self._secret:
                _prove(stream, self._secret)
        except BaseException:
            made.close()
            raise
        return stream

    def _leave_time_to_the_kernel(self, made: socket.socket) -> None:
        """With Python's own timeout the socket would not block, and a large frame would come in
        as many small pieces."""
        made.settimeout(None)
        seconds, rest = divmod(self._timeout_ms, 1000)
        time_limit = _TIMEVAL.pack(seconds, rest * 1000)
        made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, time_limit)
        made.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, time_limit)


def _prove(stream: BookieStream, secret: bytes) -> None:
    """
    Raises:
        SecretRefusedError: the two do not know the same secret, or the bookie knows none.
    """
    handshake = ClientHandshake(secret, random.SystemRandom())
    request: bytes | None = handshake.begin()
    while request is not None:
        stream.send(request)
        length = stream.receive(_LENGTH.size)
        (size,) = _LENGTH.unpack(length)
        if size > _HANDSHAKE_BYTES_MAX:
            raise SecretRefusedError("the bookie answered no handshake")
        try:
            frames = FrameDecoder(_HANDSHAKE_BYTES_MAX).feed(length + stream.receive(size))
        except BookieProtocolError as error:
            raise SecretRefusedError(f"the bookie answered no handshake: {error}") from error
        if not frames:
            raise SecretRefusedError("the bookie answered no handshake")
        request = handshake.on_frame(frames[0])


def _context(security: BookieSecurity) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.check_hostname = security.tls_checks_host
    try:
        context.load_verify_locations(security.tls_trust_file)
    except (OSError, ValueError) as error:
        raise OptionError(
            "bookieTlsTrustCertsFile", f"{security.tls_trust_file}: {_reason(error)}"
        ) from None
    try:
        # No password: asking for one would stop the process at a terminal.
        context.load_cert_chain(
            security.tls_certificate_file, security.tls_key_file, password=lambda: b""
        )
    except (OSError, ValueError) as error:
        raise OptionError(
            "bookieTlsCertificateFile",
            f"{security.tls_certificate_file} with the key {security.tls_key_file}: "
            f"{_reason(error)}",
        ) from None
    return context


def _secret_in(path: str) -> bytes:
    try:
        return parse_secrets(Path(path).read_bytes(), where=path)[0]
    except OSError as error:
        raise OptionError("bookieSharedSecretFile", f"{path}: {_reason(error)}") from None
    except SharedSecretConfigError as error:
        raise OptionError("bookieSharedSecretFile", str(error)) from None


def _reason(error: Exception) -> str:
    if isinstance(error, ssl.SSLError):
        return error.reason or "no PEM"
    if isinstance(error, OSError) and error.errno:
        return os.strerror(error.errno)
    return str(error) or type(error).__name__
