"""One blocking connection to a bookie that reads ranges of entries, with the next one always
requested.

An executor's Python process only decodes what arrives, so there is no event loop. The next range is
requested as soon as the head of a reply says how many entries are in it: the bookie reads, and the
kernel receives, while this process decodes.

Frames: docs/formats/bookie-frame.md. A reply to READ: header, LAC (i64, unused here), an entry
block (count, lengths, packets).

The stream is plain or over TLS, where both sides show a certificate. If there is a shared secret,
its handshake comes first. The files are on the executors, under the same paths on all of them:
slices, which Spark keeps in many places, name the files and hold no secret.
"""

import os
import random
import socket
import ssl
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from magnetar.arrow.stored.errors import OptionError
from magnetar.arrow.stored.slices import Address, BookieSecurity
from magnetar.ledger.errors import (
    BookieProtocolError,
    BookieUnavailableError,
    NoSuchEntryError,
    NoSuchLedgerOnBookieError,
    SecretRefusedError,
    SharedSecretConfigError,
    UnauthorizedError,
    WrongBookieError,
)
from magnetar.ledger.hello import (
    HELLO_ID,
    HELLO_LEDGER_ID,
    NO_ENTRY_ID,
    BookieIdentity,
    decode_identity,
    encode_hello,
)
from magnetar.ledger.secret_handshake import ClientHandshake, parse_secrets
from magnetar.ledger.wire import (
    FRAME_BYTES_MAX,
    HEADER,
    HEADER_BYTES,
    MAGIC,
    RESPONSE,
    VERSION,
    EntryBlock,
    FrameDecoder,
    Op,
    Status,
    decode_block,
    encode_frame,
    encode_read_body,
)
from magnetar.ledger.wire_bodies import decode_entry_list, encode_list_entries

_TIMEVAL = struct.Struct("@ll")
_LENGTH = struct.Struct(">I")
_TLS_RECORD_BYTES = 16 * 1024
"""Most bytes that a TLS record delivers at once."""
_HANDSHAKE_BYTES_MAX = 4096


class BookieStream:
    """One connection. For one thread; every method raises OSError."""

    def __init__(self, connected: socket.socket) -> None:
        self._socket = connected
        self._is_tls = isinstance(connected, ssl.SSLSocket)
        self._seen = b""
        """Bytes already taken from a TLS connection, which cannot be peeked into."""

    def send(self, data: bytes) -> None:
        self._socket.sendall(data)

    def look(self, size: int) -> bytes:
        """Return the next bytes without consuming them: the next `receive` begins with them."""
        if self._is_tls:
            self._seen = self.receive(size)
            return self._seen
        data = self._socket.recv(size, socket.MSG_PEEK | socket.MSG_WAITALL)
        if len(data) < size:
            raise ConnectionError("the connection was closed")
        return data

    def receive(self, size: int) -> bytes:
        """Receive exactly `size` bytes."""
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
    """Opens connections to bookies; reads its files once."""

    def __init__(self, security: BookieSecurity, *, timeout_ms: int) -> None:
        """`timeout_ms` limits connecting, and each send and receive.

        Raises:
            OptionError: a file cannot be used.
        """
        self._timeout_ms = timeout_ms
        self._tls = _context(security) if security.tls_trust_file else None
        self._secret = _secret_in(security.secret_file) if security.secret_file else b""

    def connect(self, address: Address) -> BookieStream:
        """Connect to a bookie and authenticate.

        Raises:
            OSError: no connection, or one side does not accept the other's certificate or secret.
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
        """Set the timeout in the kernel. With Python's own timeout the socket would not block, and
        a large frame would come in as many small pieces."""
        made.settimeout(None)
        seconds, rest = divmod(self._timeout_ms, 1000)
        time_limit = _TIMEVAL.pack(seconds, rest * 1000)
        made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, time_limit)
        made.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, time_limit)


def _prove(stream: BookieStream, secret: bytes) -> None:
    """Run the handshake of the shared secret.

    Raises:
        SecretRefusedError: the two sides do not know the same secret, or the bookie knows none.
    """
    handshake = ClientHandshake(secret, random.SystemRandom())
    request: bytes | None = handshake.begin()
    while request is not None:
        stream.send(request)
        length = stream.receive(_LENGTH.size)
        (size,) = _LENGTH.unpack(length)
        if size > _HANDSHAKE_BYTES_MAX:
            raise SecretRefusedError("the bookie did not answer the handshake")
        try:
            frames = FrameDecoder(_HANDSHAKE_BYTES_MAX).feed(length + stream.receive(size))
        except BookieProtocolError as error:
            raise SecretRefusedError(f"the bookie did not answer the handshake: {error}") from error
        if not frames:
            raise SecretRefusedError("the bookie did not answer the handshake")
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
        # No password: a prompt would stop the process at a terminal.
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


_LAC_BYTES = 8
_COUNT = struct.Struct(">I")
_LENGTH_BYTES = 4
_LIST_BITMAP_BYTES = 1
"""Size of the requested bitmap: only the first entry of a list is needed."""


class BookieLink:
    """A connection to one bookie, made on first use. For one thread."""

    def __init__(self, bookie_id: str, address: Address, connector: BookieConnector) -> None:
        self._name = f"bookie {bookie_id} at {address.host}:{address.port}"
        self._meant = BookieIdentity(bookie_id, address.instance_id)
        self._address = address
        self._connector = connector
        self._stream: BookieStream | None = None
        self._next_request_id = 0
        self._is_asked = False
        """Whether a reply is outstanding that was not read."""

    def blocks(
        self, ledger_id: int, first: int, last: int, bytes_max: int, *, key: bytes = b""
    ) -> Iterator[tuple[int, EntryBlock]]:
        """Yield blocks of entries from `first` to `last`, in order, with the id of their first
        entry.

        `key` is the `read_key` of the ledger. A caller that stops early may send another request:
        the link then reconnects.

        Raises:
            BookieUnavailableError: no connection, no answer in time, or an answer that is an error.
            NoSuchEntryError, NoSuchLedgerOnBookieError: the bookie does not have them.
            UnauthorizedError: this is not the ledger's key.
            BookieProtocolError: an answer that violates the protocol.
        """
        with self._connected():
            body = encode_read_body(last_entry_id=last, bytes_max=bytes_max, master_key=key)
            request_id = self._ask(Op.READ, ledger_id, first, body)
            while True:
                block_bytes, count = self._head(request_id, ledger_id, first)
                after = first + count
                if after <= last:
                    request_id = self._ask(Op.READ, ledger_id, after, body)
                yield first, decode_block(self._receive(block_bytes))
                if after > last:
                    return
                first = after

    def first_held(self, ledger_id: int, first: int, last: int, *, key: bytes = b"") -> int | None:
        """Return the first of the entries `first` to `last` that the bookie has; None if it has
        none.

        `key` is the `read_key` of the ledger.

        Raises:
            BookieUnavailableError, BookieProtocolError: as `blocks`.
            NoSuchLedgerOnBookieError: the bookie has nothing of the ledger at all.
        """
        body = encode_list_entries(_LIST_BITMAP_BYTES, master_key=key)
        with self._connected():
            while first <= last:
                request_id = self._ask(Op.LIST_ENTRIES, ledger_id, first, body)
                body_bytes = self._answer(Op.LIST_ENTRIES, request_id, ledger_id, first)
                page = decode_entry_list(self._receive(body_bytes))
                self._is_asked = False
                if page.bitmap:
                    if page.first_entry_id < first:
                        raise BookieProtocolError(f"{self._name}: a list of other entries")
                    return page.first_entry_id if page.first_entry_id <= last else None
                if page.next_entry_id == -1:
                    return None
                if page.next_entry_id <= first:
                    raise BookieProtocolError(f"{self._name}: a list that does not go on")
                first = page.next_entry_id
            return None

    def close(self) -> None:
        if self._stream is not None:
            self._stream.close()
            self._stream = None
        self._is_asked = False

    @contextmanager
    def _connected(self) -> Iterator[None]:
        """Ensure a connection with no outstanding reply; close it if it fails."""
        try:
            if self._stream is None or self._is_asked:
                self._connect()
            yield
        except (OSError, ValueError) as error:
            self.close()
            raise BookieUnavailableError(
                f"{self._name}: {error or type(error).__name__}"
            ) from error
        except (BookieProtocolError, BookieUnavailableError):
            self.close()
            raise

    def _connect(self) -> None:
        self.close()
        self._stream = self._connector.connect(self._address)
        # The address is as old as the plan of the query: another process may listen there by now.
        self._stream.send(encode_hello(self._meant))
        body_bytes = self._answer(Op.INFO, HELLO_ID, HELLO_LEDGER_ID, NO_ENTRY_ID)
        answering = decode_identity(self._receive(body_bytes))
        if answering.is_other_than(self._meant):
            raise WrongBookieError(f"expected {self._meant}, but {answering} answered")

    def _receive(self, size: int) -> bytes:
        assert self._stream is not None
        return self._stream.receive(size)

    def _ask(self, op: Op, ledger_id: int, first: int, body: bytes) -> int:
        assert self._stream is not None
        self._next_request_id += 1
        self._stream.send(
            encode_frame(
                op,
                request_id=self._next_request_id,
                ledger_id=ledger_id,
                entry_id=first,
                body=body,
            )
        )
        self._is_asked = True
        return self._next_request_id

    def _head(self, request_id: int, ledger_id: int, entry_id: int) -> tuple[int, int]:
        """Return the size of the block that follows, and its count of entries, which is a part of
        the block."""
        body_bytes = self._answer(Op.READ, request_id, ledger_id, entry_id)
        assert self._stream is not None
        if body_bytes < _LAC_BYTES + _COUNT.size:
            raise BookieProtocolError(f"{self._name}: a READ reply of {body_bytes} bytes")
        self._receive(_LAC_BYTES)
        # Only peeked, so that the block arrives in one piece: joining two pieces would copy it.
        (count,) = _COUNT.unpack(self._stream.look(_COUNT.size))
        if count < 1:
            raise BookieProtocolError(f"{self._name}: a READ reply without entries")
        self._is_asked = False
        return body_bytes - _LAC_BYTES, count

    def _answer(self, asked: Op, request_id: int, ledger_id: int, entry_id: int) -> int:
        """Receive the header of a successful answer; return the size of its body."""
        length, magic, version, op, _, status, answered, ledger, entry = HEADER.unpack(
            self._receive(HEADER_BYTES)
        )
        body_bytes = length - (HEADER_BYTES - _LENGTH_BYTES)
        if (magic, version) != (MAGIC, VERSION) or not 0 <= body_bytes <= FRAME_BYTES_MAX:
            raise BookieProtocolError(f"{self._name}: no frame of the bookie protocol")
        if (op, status) == (Op.AUTH | RESPONSE, Status.UNAUTHORIZED):
            # Whatever was requested: this bookie requires the handshake of the shared secret first.
            text = self._receive(body_bytes).decode("utf-8", "replace")
            raise BookieUnavailableError(
                f"{self._name}: {text} (here it is the option bookieSharedSecretFile)"
            )
        if (op, status) == (Op.INFO | RESPONSE, Status.WRONG_BOOKIE):
            raise WrongBookieError(self._receive(body_bytes).decode("utf-8", "replace"))
        if (op, answered, ledger, entry) != (asked | RESPONSE, request_id, ledger_id, entry_id):
            raise BookieProtocolError(f"{self._name}: the answer is to another request")
        if status != Status.OK:
            text = self._receive(body_bytes).decode("utf-8", "replace")
            self._is_asked = False
            where = f"{self._name}: entry {entry_id} of ledger {ledger_id}"
            if status == Status.NO_SUCH_ENTRY:
                raise NoSuchEntryError(f"{where}: no such entry")
            if status == Status.NO_SUCH_LEDGER:
                raise NoSuchLedgerOnBookieError(f"{where}: no such ledger")
            if status == Status.UNAUTHORIZED:
                raise UnauthorizedError(f"{where}: the ledger's password does not fit: {text}")
            raise BookieUnavailableError(f"{where}: status {status} {text}")
        return int(body_bytes)
