"""What one producer sent in one read: entries on their way into the log, and the receipts they owe.

A batch is a value with a *sink*, which hears of the outcome. Checks of features may note something
about single entries (`EntryNotes`); gates write down what they have decided (`is_duplicate`,
`refusal`), and the sink answers by that.
"""

from collections.abc import Sequence
from typing import Any, Generic, Protocol, TypeVar, cast

from magnetar.broker.base.errors import RequestError
from magnetar.ledger.errors import LedgerError
from magnetar.sdk.wire import MessageMetadata, Send

T = TypeVar("T")


class EntryNotes(Generic[T]):
    """One kind of note about entries of a batch. A feature makes one, and finds its notes by it."""

    def __init__(self, what: str) -> None:
        self._what = what

    def __repr__(self) -> str:
        return f"<notes: {self._what}>"

    def add(self, batch: "PublishBatch", value: T) -> None:
        """Note something about the entry that comes next."""
        if batch.notes is None:
            batch.notes = {}
        batch.notes.setdefault(self, []).append((len(batch.payloads), value))

    def of(self, batch: "PublishBatch") -> Sequence[tuple[int, T]]:
        """The notes about a batch, each with the index of its entry, in order."""
        notes = batch.notes
        if notes is None:
            return ()
        return cast("Sequence[tuple[int, T]]", notes.get(self, ()))


class MessageCheck(Protocol):
    """Looks at single messages before they are stored, for topics that ask for more than a
    checksum. It sees the parsed metadata, once per message; a refusal is answered by SEND_ERROR
    with the code of the error, in its place."""

    def __call__(
        self,
        batch: "PublishBatch",
        send: Send,
        metadata: MessageMetadata,
        payload: bytes,
        /,
    ) -> None:
        """Look at the message that would come next in the batch.

        Raises:
            RequestError: it is refused.
        """
        ...


class ReceiptSink(Protocol):
    """Receiver of the outcome of a batch, which answers its SENDs; `Producer` is one."""

    def batch_appended(self, batch: "PublishBatch", ledger_id: int, first_entry_id: int, /) -> None:
        """The log has the entries durably, at consecutive ids."""
        ...

    def batch_failed(self, batch: "PublishBatch", error: LedgerError, /) -> None:
        """The log could not store the entries, or does not know whether it did."""
        ...

    def batch_answered(self, batch: "PublishBatch", frames: bytes, /, *, dropped: int = 0) -> None:
        """The topic answers with these frames, and keeps nothing."""
        ...


class PublishBatch:
    """The SENDs of one producer in one read: an append to the log, and the receipts it owes."""

    # What few batches have is only set where it is so: there is a batch for nearly every message.
    error: LedgerError | None = None
    arrived_s = 0.0
    """When it was handed to the log, by the monotonic clock."""
    has_highest_ids = False
    """One of `highest_ids` is set."""
    is_plain = True
    """None of the entries is delayed, a chunk or a marker."""
    chunks: Sequence[int] = ()
    """Indexes of the entries that are chunks."""
    notes: dict[EntryNotes[Any], list[tuple[int, Any]]] | None = None
    """What checks have noted about entries, by kind, with the indexes of the entries."""
    handed_over = 0
    """The number by which transactions know it, once it is handed to the log; 0: they do not."""
    highest = -1
    """The highest sequence id, for deduplication; -1: none that counts."""
    is_duplicate = False
    """A gate says: its entries are stored already, and are receipted without another append."""
    refusal: RequestError | None = None
    """A gate says: none of its entries is taken, for this reason."""
    closes_producer = False
    """Whether the producer is closed behind the refusal; what it sends until then is not taken."""
    receipt_ids: tuple[Sequence[int], Sequence[int]] | None = None
    """Sequence ids, and highest ones, that receipts name; None: those of the SENDs."""
    answer: bytes | None = None
    """What is answered instead of storing the entries."""
    prefixes: Sequence[bytes] | None = None
    """What is stored in front of each entry; None: nothing. Set right before the log has it."""

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
        """What looks at the metadata of each message, if anything does."""
        self._sink = sink
        self.payloads: list[bytes] = []
        """The entries: what the client sent, from the 0x0e01 magic on."""
        self.counts: list[int] = []
        """Messages in each entry."""
        self.sequence_ids: list[int] = []
        self.highest_ids: list[int] = []
        """highest_sequence_id of each SEND, 0 where it was not set."""
        self.messages = 0
        self.size_bytes = 0

    def note_chunk(self) -> None:
        """Note that the entry that comes next is a chunk."""
        self.chunks = [*self.chunks, len(self.payloads)]
        self.is_plain = False

    def forget_next(self) -> None:
        """The entry that would come next was refused: what was noted about it counts no more."""
        for notes in (self.notes or {}).values():
            while notes and notes[-1][0] >= len(self.payloads):
                notes.pop()

    @property
    def ids_in_receipts(self) -> tuple[Sequence[int], Sequence[int] | None]:
        """Sequence ids, and the highest ones if there are any, that its receipts name."""
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
        """The log has the entries durably, at consecutive ids."""
        self._sink.batch_appended(self, ledger_id, first_entry_id)

    def on_failed(self, error: LedgerError) -> None:
        """The log could not store the entries, or does not know whether it did."""
        self._sink.batch_failed(self, error)

    def answered(self, frames: bytes, *, dropped: int) -> None:
        """Answer with these frames: the topic keeps nothing. `dropped`: messages not taken."""
        self._sink.batch_answered(self, frames, dropped=dropped)
