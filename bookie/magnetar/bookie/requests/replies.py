"""Replies: those that wait for the journal, and those that are ready to send.

A `BatchContext` keeps the requests of one network read that a journal must report, and the
connection that gets the replies. `Replies` collects ready replies and sends them with one write per
connection.
"""

import asyncio
from collections import defaultdict
from collections.abc import Iterable, Sequence
from struct import pack
from typing import Protocol

from magnetar.bookie.journaling.journal import JournalBatch
from magnetar.bookie.journaling.journal_format import NewRecord, RecordType
from magnetar.bookie.metrics import BookieMetrics
from magnetar.bookie.requests.fencing import LedgerDescriptor, LedgerTable
from magnetar.ledger.wire import (
    HEADER,
    HEADER_BYTES,
    MAGIC,
    RESPONSE,
    VERSION,
    Flag,
    Frame,
    Op,
    Status,
)
from magnetar.ledger.wire_adds import NO_ID, encode_outcome

_EMPTY_BODY_LENGTH = HEADER_BYTES - 4
_ADDS_REPLY = Op.ADDS | RESPONSE
_READS = (int(Op.READ), int(Op.READ_LAC))
_SEND_BYTES_MIN = 64 << 10
"""Pending replies of this size are sent at once, to see whether they congest the connection before
more are made."""


_READ_CHARGE_BYTES_MIN = 4096
"""Smallest charge of a read: even a single small entry costs memory beside its bytes."""


def read_charge(bytes_max: int) -> int:
    """Return the bytes that a pending read of up to `bytes_max` counts for."""
    return max(bytes_max, _READ_CHARGE_BYTES_MIN)


class Connection(Protocol):
    """The connection that a request came from and its reply goes to."""

    reads_bytes: int
    """Bytes requested by its reads that wait for the disk or a fence."""

    @property
    def is_congested(self) -> bool:
        """Whether the client does not take its replies, or has too many pending reads."""
        ...

    def send(self, data: bytes) -> None:
        """Send reply frames; dropped if the connection is gone."""
        ...

    def try_again(self) -> None:
        """Handle waiting frames again, after the reason to wait may have ended."""
        ...


class BatchContext:
    """The replies to send when a batch is durable, and their connection."""

    __slots__ = ("adds", "connection", "fences", "keys", "lacs", "shared_adds")

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.adds: list[tuple[int, int, int]] = []
        """Request id, ledger id and entry id of each ADD."""
        self.shared_adds: defaultdict[int, list[int]] = defaultdict(list)
        """Adds of ADDS frames, by request id: ledger id, entry id, ledger id, entry id, ..."""
        self.lacs: list[tuple[int, int, int]] = []
        """Request id, ledger id and LAC of each WRITE_LAC."""
        self.keys: list[LedgerDescriptor] = []
        self.fences: list[LedgerDescriptor] = []


Batch = JournalBatch[BatchContext]


class ReadBatches(dict[int, Batch]):
    """The batches of one network read, by journal number; made when first needed."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection

    def __missing__(self, journal: int) -> Batch:
        batch = self[journal] = JournalBatch(BatchContext(self.connection))
        return batch


class JournalQueue(Protocol):
    """The journal as requests see it: it reports each batch to `on_committed`, once."""

    def append(self, batch: Batch) -> None: ...


def journal_key(ledger: LedgerDescriptor, batch: Batch) -> None:
    """Write the ledger's master key ahead of the first record of the ledger by this process."""
    if not ledger.is_key_journalled:
        batch.add(NewRecord(RecordType.MASTER_KEY, ledger.ledger_id, ledger.master_key))
        batch.context.keys.append(ledger)
        ledger.is_key_journalled = True


class Replies:
    """Collects the ready replies, and sends them."""

    def __init__(self, ledgers: LedgerTable, metrics: BookieMetrics) -> None:
        self._ledgers = ledgers
        self._metrics = metrics
        self._outbox: dict[Connection, _Outgoing] = {}
        self._is_send_due = False

    def put(self, connection: Connection, frame: Frame, body: bytes = b"") -> None:
        """Reply OK, with this body."""
        self._put(connection, frame, Status.OK, body)

    def put_error(self, connection: Connection, frame: Frame, status: Status, text: str) -> None:
        """Reply with an error status and a text for people."""
        self._metrics.count_failure(status.name)
        self._put(connection, frame, status, text.encode())

    def put_empty(
        self, connection: Connection, op: int, requests: Sequence[tuple[int, int, int]]
    ) -> None:
        """Reply OK without a body to many requests: request id, ledger id, entry id of each."""
        op |= RESPONSE
        headers = [
            _header(op, 0, 0, Status.OK, request_id, ledger_id, entry_id)
            for request_id, ledger_id, entry_id in requests
        ]
        self._outgoing(connection).add(headers, HEADER_BYTES * len(headers))

    def put_shared(self, connection: Connection, request_id: int, ids: Sequence[int]) -> None:
        """Reply OK to adds of an ADDS: ledger id and entry id of each, in turn."""
        body = encode_outcome(ids)
        header = _header(_ADDS_REPLY, len(body), 0, Status.OK, request_id, NO_ID, NO_ID)
        self._outgoing(connection).add((header, body), HEADER_BYTES + len(body))

    def put_packets(
        self,
        connection: Connection,
        frame: Frame,
        packets: Sequence[bytes],
        last_add_confirmed: int,
    ) -> int:
        """Reply OK to a READ with the LAC and the packets as a block; return the bytes of the
        block.

        The packets are not copied before they are sent.
        """
        count = len(packets)
        lengths = list(map(len, packets))
        head = pack(f">q{1 + count}I", last_add_confirmed, count, *lengths)
        body_bytes = len(head) + sum(lengths)
        header = self._reply_header(frame, Status.OK, body_bytes)
        self._outgoing(connection).add((header + head, *packets), HEADER_BYTES + body_bytes)
        return body_bytes - 8

    def send_much(self, connection: Connection) -> None:
        """Send the replies of the connection now if they are large."""
        outgoing = self._outbox.get(connection)
        if outgoing is not None and outgoing.size_bytes >= _SEND_BYTES_MIN:
            del self._outbox[connection]
            outgoing.send(connection)

    def send_soon(self) -> None:
        """Send after all callbacks that are ready now, so that many small replies make one
        write."""
        if not self._is_send_due:
            self._is_send_due = True
            asyncio.get_running_loop().call_soon(self._send_due)

    def _send_due(self) -> None:
        self._is_send_due = False
        self.send()

    def forget(self, connection: Connection) -> None:
        """Drop the replies to a closed connection."""
        self._outbox.pop(connection, None)

    def send(self) -> None:
        """Send all ready replies, with one write per connection."""
        if not self._outbox:
            return
        outbox, self._outbox = self._outbox, {}
        for connection, outgoing in outbox.items():
            outgoing.send(connection)

    def _put(self, connection: Connection, frame: Frame, status: Status, body: bytes) -> None:
        if frame.op == Op.ADDS:
            body = encode_outcome((frame.ledger_id, frame.entry_id), body)
            frame = frame._replace(ledger_id=NO_ID, entry_id=NO_ID)
        reply = self._reply_header(frame, status, len(body)) + body
        self._outgoing(connection).add((reply,), len(reply))

    def _reply_header(self, frame: Frame, status: Status, body_bytes: int) -> bytes:
        op, _, _, _, request_id, ledger_id, entry_id, _ = frame
        # The absence of the flag means nothing: only replies to reads carry it.
        is_fenced = op in _READS and self._ledgers.is_durably_fenced(ledger_id)
        flags = Flag.FENCED if is_fenced else 0
        return _header(op | RESPONSE, body_bytes, flags, status, request_id, ledger_id, entry_id)

    def _outgoing(self, connection: Connection) -> "_Outgoing":
        outgoing = self._outbox.get(connection)
        if outgoing is None:
            outgoing = self._outbox[connection] = _Outgoing()
        return outgoing


class _Outgoing:
    """The pending replies to one connection, in pieces."""

    __slots__ = ("pieces", "size_bytes")

    def __init__(self) -> None:
        self.pieces: list[bytes] = []
        self.size_bytes = 0

    def add(self, pieces: Iterable[bytes], size_bytes: int) -> None:
        self.pieces.extend(pieces)
        self.size_bytes += size_bytes

    def send(self, connection: Connection) -> None:
        pieces = self.pieces
        connection.send(pieces[0] if len(pieces) == 1 else b"".join(pieces))


def _header(
    op: int,
    body_bytes: int,
    flags: int,
    status: int,
    request_id: int,
    ledger_id: int,
    entry_id: int,
) -> bytes:
    length = _EMPTY_BODY_LENGTH + body_bytes
    return HEADER.pack(length, MAGIC, VERSION, op, flags, status, request_id, ledger_id, entry_id)
