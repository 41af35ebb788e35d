"""Replies: those that wait for the journal, and those on their way out.

A `BatchContext` keeps what the requests of one network read leave for a journal to report, and whom
to tell then. `Replies` collects what is ready, and sends it with one write per connection.
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
"""Replies of this size together are sent at once: whether they congest the connection is to be
known before more are made."""


_READ_CHARGE_BYTES_MIN = 4096
"""A read of a single small entry costs memory too, beside its bytes."""


def read_charge(bytes_max: int) -> int:
    """What a read that asks for so much counts while it is under way."""
    return max(bytes_max, _READ_CHARGE_BYTES_MIN)


class Connection(Protocol):
    """Where a request came from and its reply goes to."""

    reads_bytes: int
    """What its reads have asked for that wait for the disk or a fence."""

    @property
    def is_congested(self) -> bool:
        """The client does not take its replies, or too many of its reads are under way."""
        ...

    def send(self, data: bytes) -> None:
        """Send reply frames; dropped if the connection is gone."""
        ...

    def try_again(self) -> None:
        """What kept the bookie from taking all frames of the connection may be over."""
        ...


class BatchContext:
    """The replies to send when a batch is durable, and to whom."""

    __slots__ = ("adds", "connection", "fences", "keys", "lacs", "shared_adds")

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.adds: list[tuple[int, int, int]] = []
        """Request id, ledger id, entry id."""
        self.shared_adds: defaultdict[int, list[int]] = defaultdict(list)
        """Of ADDS, by request id: ledger id, entry id, ledger id, entry id, ..."""
        self.lacs: list[tuple[int, int, int]] = []
        """Request id, ledger id, LAC."""
        self.keys: list[LedgerDescriptor] = []
        self.fences: list[LedgerDescriptor] = []


Batch = JournalBatch[BatchContext]


class ReadBatches(dict[int, Batch]):
    """The batches of one network read, by the number of the journal; made when first needed."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection

    def __missing__(self, journal: int) -> Batch:
        batch = self[journal] = JournalBatch(BatchContext(self.connection))
        return batch


class JournalQueue(Protocol):
    """The journal, as far as requests go: it reports each batch to `on_committed`, once."""

    def append(self, batch: Batch) -> None: ...


def journal_key(ledger: LedgerDescriptor, batch: Batch) -> None:
    """Write the ledger's master key ahead of what this process first writes of the ledger."""
    if not ledger.is_key_journalled:
        batch.add(NewRecord(RecordType.MASTER_KEY, ledger.ledger_id, ledger.master_key))
        batch.context.keys.append(ledger)
        ledger.is_key_journalled = True


class Replies:
    """The replies that are ready."""

    def __init__(self, ledgers: LedgerTable, metrics: BookieMetrics) -> None:
        self._ledgers = ledgers
        self._metrics = metrics
        self._outbox: dict[Connection, _Outgoing] = {}
        self._is_send_due = False

    def put(self, connection: Connection, frame: Frame, body: bytes = b"") -> None:
        """OK, with this body."""
        self._put(connection, frame, Status.OK, body)

    def put_error(self, connection: Connection, frame: Frame, status: Status, text: str) -> None:
        """Another status, with a text for people."""
        self._metrics.count_failure(status.name)
        self._put(connection, frame, status, text.encode())

    def put_empty(
        self, connection: Connection, op: int, requests: Sequence[tuple[int, int, int]]
    ) -> None:
        """OK without a body to many requests: request id, ledger id, entry id of each."""
        op |= RESPONSE
        headers = [
            _header(op, 0, 0, Status.OK, request_id, ledger_id, entry_id)
            for request_id, ledger_id, entry_id in requests
        ]
        self._outgoing(connection).add(headers, HEADER_BYTES * len(headers))

    def put_shared(self, connection: Connection, request_id: int, ids: Sequence[int]) -> None:
        """OK to adds of an ADDS: ledger id and entry id of each."""
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
        """OK to a READ: the LAC, and the packets as a block; returns the bytes of the block.

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
        """Send what there is for the connection, if it is so much that more must wait for it."""
        outgoing = self._outbox.get(connection)
        if outgoing is not None and outgoing.size_bytes >= _SEND_BYTES_MIN:
            del self._outbox[connection]
            outgoing.send(connection)

    def send_soon(self) -> None:
        """Send when everything that is ready to run now has run: many small replies, one write."""
        if not self._is_send_due:
            self._is_send_due = True
            asyncio.get_running_loop().call_soon(self._send_due)

    def _send_due(self) -> None:
        self._is_send_due = False
        self.send()

    def forget(self, connection: Connection) -> None:
        """The connection is closed."""
        self._outbox.pop(connection, None)

    def send(self) -> None:
        """One write per connection."""
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
        # Nothing may be inferred from a reply without the flag: only reads carry it.
        is_fenced = op in _READS and self._ledgers.is_durably_fenced(ledger_id)
        flags = Flag.FENCED if is_fenced else 0
        return _header(op | RESPONSE, body_bytes, flags, status, request_id, ledger_id, entry_id)

    def _outgoing(self, connection: Connection) -> "_Outgoing":
        outgoing = self._outbox.get(connection)
        if outgoing is None:
            outgoing = self._outbox[connection] = _Outgoing()
        return outgoing


class _Outgoing:
    """The replies to one connection, in pieces."""

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
