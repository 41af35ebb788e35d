"""Copies from other clusters: each one is stored once, in its order, and none is missed.

The state of a source is a function of the log, as with deduplication (docs/decisions/0023). A copy
has its place in its own metadata, so the message and the mark are one append. Marks are noted when
the log confirms them. A snapshot of them is stored in a durable cursor, with the position of the
last entry in it. After a failed append of copies, this broker drops the topic. Ledgers of such a
topic do not overlap: a takeover finds a prefix of what was appended.

A topic to which no cluster copies pays nothing for this. The first producer of a replicator makes
the broker create the cursor; from then on the topic always has it.

After a copy was refused, the broker accepts nothing more of that producer: a later copy would raise
the mark past the refused one (rule 18.12a). The producer is closed, and begins again after the last
stored copy.

Source: geo-replication sheet, sections 5, 7, 17 and 18.5 to 18.12.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

import structlog

from magnetar.broker.base.entry import TRANSACTION_MARKERS
from magnetar.broker.base.errors import (
    BrokerPersistenceError,
    NotAllowedError,
    ServiceNotReadyError,
)
from magnetar.broker.base.naming import is_replicator
from magnetar.broker.features.log_snapshots import LogSnapshots, OpenSnapshotCursor
from magnetar.broker.features.replication.copies import (
    MARKER_RECEIPT,
    Copy,
    copy_in,
    copy_in_entry,
)
from magnetar.broker.features.replication.names import parse_replicator
from magnetar.broker.features.replication.source_marks import SOURCES_MAX, SourceMarks, Verdict
from magnetar.broker.topic import EntryNotes, Feature, PublishBatch, PublishRows, TopicPort, Work
from magnetar.cursors import Cursor
from magnetar.ledger.errors import LedgerError, LogTerminatedError
from magnetar.ledger.ports import Clock
from magnetar.ledger.position import Position
from magnetar.sdk.wire import MessageMetadata, Send, split_payload

_log = structlog.get_logger()

MARKS_CURSOR: Final = "magnetar.geo.marks"
"""Name of the cursor; reserved among subscriptions."""

SNAPSHOT_ENTRIES: Final = 1_000
"""Entries after which the marks are saved again; about so many are read when the topic is
loaded."""

SNAPSHOT_S: Final = 120.0
"""Seconds after which the marks are saved again, if anything was published."""

_WHY: Final = {
    Verdict.GAP: "a copy before it is missing here",
    Verdict.UNDECIDED: "the same copy is being stored",
}

_COPY = EntryNotes[Copy | None]("the place of a copy at its source; None: it is a marker")
_MARKER = EntryNotes[tuple[int, bytes]]("type and body of a marker of another cluster")


class MarkerSink(Protocol):
    """Receiver of the markers of other clusters."""

    def received(self, source: str, position: Position, marker_type: int, body: bytes, /) -> None:
        """Handle a marker of a cluster that is stored here, at a position."""
        ...

    def replayed(self, entry: bytes, /) -> None:
        """Handle an entry that a replay has read, and that may be such a marker."""
        ...

    @property
    def notes_copies(self) -> bool:
        """Whether `copied` has an effect now."""
        ...

    def copied(self, position: Position, copy: Copy | None, /) -> None:
        """Handle a copy that is stored after all other entries.

        `copy` is None for a marker, and for a copy that does not name its source.
        """
        ...


@dataclass(frozen=True, slots=True)
class ReceivingSurroundings:
    """Objects of the broker that a topic needs to receive copies."""

    cluster: str
    """Name of this cluster."""
    clock: Clock
    read_entries: int
    """Entries of one read of the log during a replay."""
    read_bytes: int


class Receiving(Feature):
    """Copies that other clusters send to one topic of this broker."""

    def __init__(
        self,
        topic: TopicPort,
        around: ReceivingSurroundings,
        *,
        is_stored: Callable[[], Awaitable[bool]],
        open_cursor: OpenSnapshotCursor,
        begun: Callable[[], None],
        markers: MarkerSink | None = None,
    ) -> None:
        """Create the feature.

        Args:
            is_stored: whether the topic has the cursor `MARKS_CURSOR`.
            open_cursor: opens the cursor, or creates it at the end of the log.
            begun: called when copies may arrive from now on: the rows of the publish line change,
                and ledgers no longer overlap.
            markers: receiver of the markers of other clusters; None if they are only stored.
        """
        self._topic = topic
        self._label = str(topic.name)
        self._around = around
        self._is_stored = is_stored
        self._open_cursor = open_cursor
        self._begun = begun
        self._markers = markers
        self._marks = SourceMarks()
        self._snapshots: LogSnapshots | None = None
        self._beginning = asyncio.Lock()
        self._refused: set[str] = set()
        """Replicators of which nothing is accepted until they connect again."""
        self._waiting: list[asyncio.Future[None]] = []
        self._is_closed = False
        self.duplicates = 0
        """Copies that arrived again and were not stored again."""

    # Life cycle

    async def restore(self) -> None:
        """Load the marks, if the topic ever received copies.

        Raises:
            LedgerError, CursorError: not everything can be read now.
        """
        if await self._is_stored():
            await self._begin()

    async def _begin(self) -> None:
        """Open or create the cursor, and read the log after its snapshot."""
        around = self._around
        snapshots = LogSnapshots(
            await self._open_cursor(),
            self._topic.log,
            lambda: self._marks.snapshot(),
            clock=around.clock,
        )
        marks = SourceMarks(snapshots.stored)

        def note(entry: bytes) -> None:
            copy = copy_in_entry(entry)
            if copy is not None:
                marks.replayed(copy.source, copy.place.position)
            if self._markers is not None:
                self._markers.replayed(entry)

        read = await snapshots.replay(
            note, entries_max=around.read_entries, bytes_max=around.read_bytes
        )
        self._marks, self._snapshots = marks, snapshots
        snapshots.take_after_entries(SNAPSHOT_ENTRIES)
        self._begun()
        _log.info("copies_expected", topic=self._label, sources=len(marks), entries_read=read)

    def look(self) -> Work | None:
        if self._snapshots is not None:
            self._snapshots.take_after_s(SNAPSHOT_S)
        return None

    def shown(self) -> Mapping[str, Any]:
        if self._snapshots is None:
            return {}
        return {"copies": {"sources": len(self._marks), "duplicates": self.duplicates}}

    def cursors(self) -> Iterable[Cursor]:
        return self._snapshots.cursors() if self._snapshots is not None else ()

    def rows(self) -> PublishRows:
        if self._snapshots is None:
            return PublishRows()
        return PublishRows(checks=(self.check,), gates=(self,), listeners=(self,))

    def close(self) -> None:
        """Take a last snapshot, and release all waiting producers."""
        if self._is_closed:
            return
        self._is_closed = True
        if self._snapshots is not None:
            self._snapshots.close()
        self._wake()

    # Producers

    async def admit_producer(self, producer_name: str, *, is_transactional: bool) -> None:
        """Admit a replicator for this cluster, when no earlier copy of its source is undecided.

        Raises:
            NotAllowedError: the producer copies to another cluster, or from this one.
            ServiceNotReadyError: the topic is closing.
            LedgerError, CursorError: the marks cannot be read now.
        """
        name = parse_replicator(producer_name)
        if name is None:
            return
        here = self._around.cluster
        if name.source == here or name.target not in ("", here):
            raise NotAllowedError(
                f"{self._label}: producer {producer_name} copies from {name.source} to "
                f"{name.target or 'another cluster'}, and this is {here}: the clusters know each "
                "other by wrong names (compare `clusters list` on both sides)"
            )
        async with self._beginning:
            if self._snapshots is None:
                await self._begin()
        while not self._is_closed and not self._marks.is_settled(name.source):
            waiting = asyncio.get_running_loop().create_future()
            self._waiting.append(waiting)
            await waiting
        if self._is_closed:
            raise ServiceNotReadyError(f"{self._label} is closing")
        self._refused.discard(producer_name)

    def _wake(self) -> None:
        waiting, self._waiting = self._waiting, []
        for each in waiting:
            if not each.done():
                each.set_result(None)

    # Publishing

    def check(
        self, batch: PublishBatch, send: Send, metadata: MessageMetadata, payload: bytes
    ) -> None:
        """Check the next message of a batch.

        Raises:
            NotAllowedError: the message claims to be a copy, but its producer is no replicator
                (rule 5.1); or it is a copy of another cluster than its producer's; or it ends a
                transaction of that cluster.
            BrokerMetadataError: the place of the copy is not valid.
        """
        name = parse_replicator(batch.producer_name)
        if name is None:
            if metadata.HasField("replicated_from") or metadata.HasField("magnetar_source"):
                raise NotAllowedError(
                    f"{self._label}: the message of producer {batch.producer_name} with sequence "
                    f"id {send.sequence_id} says that it is a copy of cluster "
                    f"{metadata.replicated_from or 'another'}, and only replicators bring copies"
                )
            return
        if metadata.HasField("marker_type"):
            self._check_marker(batch, metadata, payload)
            if not metadata.HasField("magnetar_source"):
                _COPY.add(batch, None)
                return
        if metadata.replicated_from != name.source:
            raise NotAllowedError(
                f"{self._label}: producer {batch.producer_name} brings a message that is a copy of "
                f"cluster {metadata.replicated_from!r}, with sequence id {send.sequence_id}"
            )
        copy = copy_in(metadata)
        if copy is None:
            return  # an old release of Pulsar names no place: stored at least once
        if len(self._marks) >= SOURCES_MAX and not self._marks.is_known(copy.source):
            raise NotAllowedError(
                f"{self._label} has copies of {SOURCES_MAX} sources, which is the most; that of "
                f"cluster {copy.source.cluster} would be one more"
            )
        _COPY.add(batch, copy)

    def _check_marker(self, batch: PublishBatch, metadata: MessageMetadata, payload: bytes) -> None:
        """Note the content of a marker.

        Raises:
            NotAllowedError: the marker ends a transaction, which concerns its own cluster only.
        """
        if metadata.marker_type in TRANSACTION_MARKERS:
            raise NotAllowedError(
                f"{self._label}: producer {batch.producer_name} brings a marker of type "
                f"{metadata.marker_type}; the ends of transactions are not copied"
            )
        if self._markers is not None:
            _, body_at = split_payload(payload)
            _MARKER.add(batch, (metadata.marker_type, payload[body_at:]))

    def accept(self, batch: PublishBatch) -> Iterable[PublishBatch] | None:
        """Accept copies that are all new, as nearly always; otherwise split the batch."""
        if not is_replicator(batch.producer_name):
            return None
        if batch.producer_name in self._refused:
            return [self._refuse(batch, "a copy before it was refused")]
        copies = dict(_COPY.of(batch))
        verdicts: list[Verdict] = []
        for at in range(len(batch.payloads)):
            copy = copies.get(at)
            verdict = Verdict.NEW if copy is None else self._marks.accept(*copy)
            if verdict in (Verdict.GAP, Verdict.UNDECIDED):
                self._refused.add(batch.producer_name)
                return [*self._parts(batch, verdicts), self._refuse(batch.part(at), _WHY[verdict])]
            verdicts.append(verdict)
        if Verdict.DUPLICATE in verdicts:
            return list(self._parts(batch, verdicts))
        self._number(batch, copies)
        return None

    def _parts(self, batch: PublishBatch, verdicts: Sequence[Verdict]) -> Iterable[PublishBatch]:
        """Yield the judged entries in order, in parts of one verdict each."""
        start = 0
        for at in range(1, len(verdicts) + 1):
            if at < len(verdicts) and verdicts[at] is verdicts[start]:
                continue
            part = batch.part(start, at)
            self._number(part, dict(_COPY.of(part)))
            if verdicts[start] is Verdict.DUPLICATE:
                self.duplicates += part.messages
                part.is_duplicate = True
            yield part
            start = at

    def _refuse(self, batch: PublishBatch, why: str) -> PublishBatch:
        batch.refusal = BrokerPersistenceError(f"{self._label}: {why}: send it again")
        batch.closes_producer = True
        return batch

    @staticmethod
    def _number(batch: PublishBatch, copies: Mapping[int, Copy | None]) -> None:
        """Set the receipt ids: each copy's place at its source, or `MARKER_RECEIPT`."""
        ids, highest = list(batch.sequence_ids), list(batch.highest_ids)
        for at in range(len(ids)):
            if at not in copies:
                continue  # from an old release of Pulsar, which compares the ids of its SENDs
            copy = copies[at]
            if copy is not None:
                ids[at], highest[at] = copy.place.position
            else:
                highest[at] = MARKER_RECEIPT
        batch.receipt_ids = (ids, highest)

    def stored(self, batch: PublishBatch, ledger_id: int, first_entry_id: int) -> None:
        """Note that the log has confirmed a batch."""
        assert self._snapshots is not None, "only then there is a row"
        copies = _COPY.of(batch)
        for _, copy in copies:
            if copy is not None:
                self._marks.on_stored(copy.source, copy.place.position)
        if copies and self._waiting:
            self._wake()
        if self._markers is not None:
            if self._markers.notes_copies and is_replicator(batch.producer_name):
                self._note_copies(batch, ledger_id, first_entry_id, self._markers)
            for at, marker in _MARKER.of(batch):
                name = parse_replicator(batch.producer_name)
                assert name is not None, "only replicators bring markers"
                self._markers.received(
                    name.source, Position(ledger_id, first_entry_id + at), *marker
                )
        last = Position(ledger_id, first_entry_id + len(batch.payloads) - 1)
        self._snapshots.on_stored(last, len(batch.payloads))
        self._snapshots.take_after_entries(SNAPSHOT_ENTRIES)

    @staticmethod
    def _note_copies(
        batch: PublishBatch, ledger_id: int, first_entry_id: int, sink: MarkerSink
    ) -> None:
        copies = dict(_COPY.of(batch))
        copies |= dict.fromkeys(at for at, _ in _MARKER.of(batch))
        for at in range(len(batch.payloads)):
            sink.copied(Position(ledger_id, first_entry_id + at), copies.get(at))

    def failed(self, batch: PublishBatch, error: LedgerError) -> None:
        """Drop the topic if copies may be stored: only the log's recovery tells."""
        topic = self._topic
        if isinstance(error, LogTerminatedError) or topic.log.terminated is not None:
            return  # refused definitely, and for good
        if _COPY.of(batch) and not topic.is_closed:
            topic.reload("copies may be stored or not")
