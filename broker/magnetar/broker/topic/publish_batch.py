"""A publish batch: the SENDs of one producer in one read, and the receipts that they need.

A batch is a value with a *sink*, which receives the outcome. Checks of features may note something
about single entries (`EntryNotes`). Gates record their decisions (`is_duplicate`, `refusal`), and
the sink answers accordingly.
"""

from collections.abc import Sequence
from typing import Any, Generic, Protocol, TypeVar, cast

from magnetar.broker.base.errors import RequestError
from magnetar.ledger.errors import LedgerError
from magnetar.sdk.wire import MessageMetadata, Send

T = TypeVar("T")


class EntryNotes(Generic[T]):
    """One kind of note about entries of a batch. A feature creates one, and uses it as the key to
    its notes."""

    def __init__(self, what: str) -> None:
        self._what = what

    def __repr__(self) -> str:
        return f"<notes: {self._what}>"

    def add(self, batch: "PublishBatch", value: T) -> None:
        """Add a note about the next entry of the batch."""
        if batch.notes is None:
            batch.notes = {}
        batch.notes.setdefault(self, []).append((len(batch.payloads), value))

    def of(self, batch: "PublishBatch") -> Sequence[tuple[int, T]]:
        """Return the notes about a batch in order, each with the index of its entry."""
        notes = batch.notes
        if notes is None:
            return ()
        return cast("Sequence[tuple[int, T]]", notes.get(self, ()))


class MessageCheck(Protocol):
    """Checks single messages before they are stored, for topics that need more than a checksum.

    A check sees the parsed metadata, once per message. A refusal is answered with SEND_ERROR and
    the code of the error, in its place.
    """

    def __call__(
        self,
        batch: "PublishBatch",
        send: Send,
        metadata: MessageMetadata,
        payload: bytes,
        /,
    ) -> None:
        """Check the message that would come next in the batch.

        Raises:
            RequestError: the message is refused.
        """
        ...


class ReceiptSink(Protocol):
    """Receiver of the outcome of a batch, which answers its SENDs; `Producer` is one."""

    def batch_appended(self, batch: "PublishBatch", ledger_id: int, first_entry_id: int, /) -> None:
        """Handle entries that are durable in the log, at consecutive ids."""
        ...

    def batch_failed(self, batch: "PublishBatch", error: LedgerError, /) -> None:
        """Handle entries that the log could not store, or whose outcome it does not know."""
        ...

    def batch_answered(self, batch: "PublishBatch", frames: bytes, /, *, dropped: int = 0) -> None:
        """Send these frames as the topic's answer; the topic stores nothing."""
        ...


class PublishBatch:
    """The SENDs of one producer in one read: an append to the log, and the receipts needed."""

    # Fields that few batches use are class attributes, set only where needed: there is a batch for
    # nearly every message.
    error: LedgerError | None = None
    arrived_s = 0.0
    """When the batch was handed to the log, monotonic seconds."""
    has_highest_ids = False
    """Whether one of `highest_ids` is set."""
    is_plain = True
    """Whether none of the entries is delayed, a chunk or a marker."""
    chunks: Sequence[int] = ()
    """Indexes of the entries that are chunks."""
    notes: dict[EntryNotes[Any], list[tuple[int, Any]]] | None = None
    """Notes of checks about entries, by kind, each with the index of the entry."""
    handed_over = 0
    """Number by which transactions know the batch, once it is handed to the log; 0: none."""
    highest = -1
    """Highest sequence id, for deduplication; -1: none that counts."""
    is_duplicate = False
    """Set by a gate: the entries are stored already, and get receipts without another append."""
    refusal: RequestError | None = None
    """Set by a gate: none of the entries is accepted, for this reason."""
    closes_producer = False
    """Whether the producer is closed after the refusal; until then, its further messages are not
    taken."""
    receipt_ids: tuple[Sequence[int], Sequence[int]] | None = None
    """Sequence ids, and highest ones, that receipts name; None: those of the SENDs."""
    answer: bytes | None = None
    """Frames that answer the batch instead of storing its entries."""
    prefixes: Sequence[bytes] | None = None
    """Prefixes stored in front of the entries; None: no prefixes. Set right before the append."""

    def __init__(
        self,
        producer_id: int,
        producer_name: str,
        checks: Sequence[MessageCheck],
        sink: ReceiptSink,
    ) -> None:
        self.producer_id = producer_id
        self.producer_name = producer_name
        self.checks = checks
        """Checks of the metadata of each message."""
        self._sink = sink
        self.payloads: list[bytes] = []
        """The entries: what the client sent, from the 0x0e01 magic on."""
        self.counts: list[int] = []
        """Messages in each entry."""
        self.sequence_ids: list[int] = []
        self.highest_ids: list[int] = []
        """highest_sequence_id of each SEND; 0 where it is not set."""
        self.messages = 0
        self.size_bytes = 0

    def note_chunk(self) -> None:
        """Note that the next entry is a chunk."""
        self.chunks = [*self.chunks, len(self.payloads)]
        self.is_plain = False

    def forget_next(self) -> None:
        """Drop the notes about the next entry, because it was refused."""
        for notes in (self.notes or {}).values():
            while notes and notes[-1][0] >= len(self.payloads):
                notes.pop()

    @property
    def ids_in_receipts(self) -> tuple[Sequence[int], Sequence[int] | None]:
        """Sequence ids that the receipts name, and the highest ones if there are any."""
        if self.receipt_ids is not None:
            return self.receipt_ids
        return self.sequence_ids, self.highest_ids if self.has_highest_ids else None

    def part(self, start: int, stop: int | None = None) -> "PublishBatch":
        """Return a batch of the entries from `start` to before `stop`; None: to the end."""
        stop = len(self.payloads) if stop is None else stop
        part = PublishBatch(self.producer_id, self.producer_name, self.checks, self._sink)
        part.arrived_s = self.arrived_s
        part.payloads = self.payloads[start:stop]
        part.counts = self.counts[start:stop]
        part.sequence_ids = self.sequence_ids[start:stop]
        part.highest_ids = self.highest_ids[start:stop]
        part.has_highest_ids = any(part.highest_ids)
        part.is_plain = self.is_plain
        part.messages = sum(part.counts)
        part.size_bytes = sum(map(len, part.payloads))
        if self.chunks:
            part.chunks = [at - start for at in self.chunks if start <= at < stop]
        if self.notes is not None:
            part.notes = {
                kind: within
                for kind, notes in self.notes.items()
                if (within := [(at - start, each) for at, each in notes if start <= at < stop])
            }
        return part

    def on_appended(self, ledger_id: int, first_entry_id: int) -> None:
        """Handle entries that are durable in the log, at consecutive ids."""
        self._sink.batch_appended(self, ledger_id, first_entry_id)

    def on_failed(self, error: LedgerError) -> None:
        """Handle entries that the log could not store, or whose outcome it does not know."""
        self._sink.batch_failed(self, error)

    def answered(self, frames: bytes, *, dropped: int) -> None:
        """Answer with these frames: the topic stores nothing. `dropped`: messages that were
        dropped."""
        self._sink.batch_answered(self, frames, dropped=dropped)
