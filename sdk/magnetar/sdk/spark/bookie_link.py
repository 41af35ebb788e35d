"""One blocking connection to a bookie: ranges of entries, with the next one always under way.

Executors' Python has nothing to do but to decode what comes, so that there is no event loop. The
next range is asked for as soon as the head of a reply says how many entries are in it: the bookie
reads, and the kernel receives, while this process decodes.

Frames: docs/formats/bookie-frame.md. A reply to READ: header, LAC (i64, of no use here), an entry
block (count, lengths, packets).
"""

import struct
from collections.abc import Iterator
from contextlib import contextmanager

from magnetar.ledger.errors import (
    BookieProtocolError,
    BookieUnavailableError,
    NoSuchEntryError,
    NoSuchLedgerOnBookieError,
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
from magnetar.ledger.wire import (
    FRAME_BYTES_MAX,
    HEADER,
    HEADER_BYTES,
    MAGIC,
    RESPONSE,
    VERSION,
    EntryBlock,
    Op,
    Status,
    decode_block,
    encode_frame,
    encode_read_body,
)
from magnetar.ledger.wire_bodies import decode_entry_list, encode_list_entries
from magnetar.sdk.spark.bookie_stream import BookieConnector, BookieStream
from magnetar.sdk.spark.slices import Address

_LAC_BYTES = 8
_COUNT = struct.Struct(">I")
_LENGTH_BYTES = 4
_LIST_BITMAP_BYTES = 1
"""Of a list only the first entry is wanted."""


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
        """A reply is outstanding that nobody has read."""

    def blocks(
        self, ledger_id: int, first: int, last: int, bytes_max: int, *, key: bytes = b""
    ) -> Iterator[tuple[int, EntryBlock]]:
        """Blocks of entries from `first` to `last`, in order, with the id of their first entry.

        `key`: the `read_key` of the ledger.

        Whoever stops early may ask for something else: the connection is made anew then.

        Raises:
            BookieUnavailableError: no connection, no answer in time, or an answer that is an error.
            NoSuchEntryError, NoSuchLedgerOnBookieError: the bookie says that it has not got them.
            UnauthorizedError: this is not the ledger's key.
            BookieProtocolError: an answer that cannot be.
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
        """The first of the entries `first` to `last` that the bookie has; None: it has none.

        `key`: the `read_key` of the ledger.

        Raises:
            BookieUnavailableError, BookieProtocolError: as `blocks`.
            NoSuchLedgerOnBookieError: it has nothing of the ledger at all.
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
        """A connection with no reply under way; one that fails is closed."""
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
        # The address is as old as the plan of the query: anybody may listen there by now.
        self._stream.send(encode_hello(self._meant))
        body_bytes = self._answer(Op.INFO, HELLO_ID, HELLO_LEDGER_ID, NO_ENTRY_ID)
        answering = decode_identity(self._receive(body_bytes))
        if answering.is_other_than(self._meant):
            raise WrongBookieError(f"{self._meant} was meant, {answering} answers")

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
        """Bytes of the block that follows, and its count of entries, which is a part of it."""
        body_bytes = self._answer(Op.READ, request_id, ledger_id, entry_id)
        assert self._stream is not None
        if body_bytes < _LAC_BYTES + _COUNT.size:
            raise BookieProtocolError(f"{self._name}: a READ reply of {body_bytes} bytes")
        self._receive(_LAC_BYTES)
        # Not taken, so that the block arrives in one piece: to put one together copies it.
        (count,) = _COUNT.unpack(self._stream.look(_COUNT.size))
        if count < 1:
            raise BookieProtocolError(f"{self._name}: a READ reply without entries")
        self._is_asked = False
        return body_bytes - _LAC_BYTES, count

    def _answer(self, asked: Op, request_id: int, ledger_id: int, entry_id: int) -> int:
        """Bytes of the body that follows, of an answer that is no error."""
        length, magic, version, op, _, status, answered, ledger, entry = HEADER.unpack(
            self._receive(HEADER_BYTES)
        )
        body_bytes = length - (HEADER_BYTES - _LENGTH_BYTES)
        if (magic, version) != (MAGIC, VERSION) or not 0 <= body_bytes <= FRAME_BYTES_MAX:
            raise BookieProtocolError(f"{self._name}: no frame of the bookie protocol")
        if (op, status) == (Op.AUTH | RESPONSE, Status.UNAUTHORIZED):
            # Whatever was asked: this bookie wants the handshake of the shared secret first.
            text = self._receive(body_bytes).decode("utf-8", "replace")
            raise BookieUnavailableError(
                f"{self._name}: {text} (here it is the option bookieSharedSecretFile)"
            )
        if (op, status) == (Op.INFO | RESPONSE, Status.WRONG_BOOKIE):
            raise WrongBookieError(self._receive(body_bytes).decode("utf-8", "replace"))
        if (op, answered, ledger, entry) != (asked | RESPONSE, request_id, ledger_id, entry_id):
            raise BookieProtocolError(f"{self._name}: an answer to another question")
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
