"""Replies on their way out: collected, and sent with one write per connection."""

from collections.abc import Sequence
from typing import Protocol

from magnetar.bookie.metrics import BookieMetrics
from magnetar.bookie.requests.fencing import LedgerTable
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
    encode_frame,
)

_EMPTY_BODY_LENGTH = HEADER_BYTES - 4


class Connection(Protocol):
    """Where a request came from and its reply goes to."""

    reads_bytes: int
    """What its reads from disk have asked for and not got yet."""

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


class Replies:
    """The replies that are ready."""

    def __init__(self, ledgers: LedgerTable, metrics: BookieMetrics) -> None:
        self._ledgers = ledgers
        self._metrics = metrics
        self._outbox: dict[Connection, list[bytes]] = {}

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
        pack, op = HEADER.pack, op | RESPONSE
        self._outbox.setdefault(connection, []).extend(
            [
                pack(
                    _EMPTY_BODY_LENGTH,
                    MAGIC,
                    VERSION,
                    op,
                    0,
                    Status.OK,
                    request_id,
                    ledger_id,
                    entry_id,
                )
                for request_id, ledger_id, entry_id in requests
            ]
        )

    def has_any(self, connection: Connection) -> bool:
        """Whether there are replies for the connection."""
        return connection in self._outbox

    def forget(self, connection: Connection) -> None:
        """The connection is closed."""
        self._outbox.pop(connection, None)

    def send(self) -> None:
        """One write per connection."""
        if not self._outbox:
            return
        outbox, self._outbox = self._outbox, {}
        for connection, replies in outbox.items():
            connection.send(replies[0] if len(replies) == 1 else b"".join(replies))

    def _put(self, connection: Connection, frame: Frame, status: Status, body: bytes) -> None:
        # Nothing may be inferred from a reply without the flag: only reads carry it.
        is_read = frame.op in (Op.READ, Op.READ_LAC)
        is_fenced = is_read and self._ledgers.is_durably_fenced(frame.ledger_id)
        reply = encode_frame(
            frame.op | RESPONSE,
            request_id=frame.request_id,
            ledger_id=frame.ledger_id,
            entry_id=frame.entry_id,
            flags=Flag.FENCED if is_fenced else 0,
            status=status,
            body=body,
        )
        self._outbox.setdefault(connection, []).append(reply)
