"""Copies that come from other clusters: each is stored once, in its order, and none is missed.

What is known of a source is a function of the log, as with deduplication (docs/decisions/0023): the
place of a copy is in its own metadata, so that the message and the mark are one append; marks are
noted when the log confirms them; a snapshot of them lies in a durable cursor, with the position of
the last entry in it; and an append of copies that failed ends the topic's time here. Ledgers of
such a topic do not overlap: what a takeover finds is a prefix of what was appended.

Nothing of this costs a topic anything that no cluster copies to. The first producer of a replicator
makes the cursor; from then on the topic always has it.

After one copy was refused, nothing more is taken of that producer: a later copy would raise the
mark over it (rule 18.12a). It is closed, and begins again behind what is stored.

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
"""Entries after which the marks are saved again: so many are read when the topic is loaded."""

SNAPSHOT_S: Final = 120.0
"""Time after which they are saved again, if anything was published."""

_WHY: Final = {
    Verdict.GAP: "a copy before it is missing here",
    Verdict.UNDECIDED: "the same copy is being stored",
}

_COPY = EntryNotes[Copy | None]("the place of a copy at its source; None: it is a marker")
_MARKER = EntryNotes[tuple[int, bytes]]("type and body of a marker of another cluster")


class MarkerSink(Protocol):
    """Receiver of the markers of other clusters."""

    def received(self, source: str, position: Position, marker_type: int, body: bytes, /) -> None:
        """A marker of a cluster is stored here, at a position."""
        ...

    def replayed(self, entry: bytes, /) -> None:
        """An entry was read again that may be such a marker."""
        ...

    @property
    def notes_copies(self) -> bool:
        """Whether `copied` makes a difference now."""
        ...

    def copied(self, position: Position, copy: Copy | None, /) -> None:
        """A copy is stored here, behind all others; None: it is a marker, or does not say where it
        comes from."""
        ...


@dataclass(frozen=True, slots=True)
class ReceivingSurroundings:
    """What a topic's receiving needs of its broker."""

    cluster: str
    """Name of this cluster."""
    clock: Clock
    read_entries: int
    """Entries of one read of the log when it is replayed."""
    read_bytes: int


class Receiving(Feature):
    """The copies that other clusters send to one topic of this broker."""

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
        """
        Args:
            is_stored: whether the topic has the cursor `MARKS_CURSOR`.
            open_cursor: opens it, or makes it at the end.
            begun: called when copies may come from now on: the rows of the publish line change, and
                ledgers overlap no more.
            markers: what the markers of other clusters are for; None: they are stored, no more.
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
        """Replicators of which nothing is taken any more, until they come again."""
        self._waiting: list[asyncio.Future[None]] = []
        self._is_closed = False
        self.duplicates = 0
        """Copies that came again and were not stored again."""

    # Its life

    async def restore(self) -> None:
        """Know what the log has of copies, if any ever came.

        Raises:
            LedgerError, CursorError: not everything can be read now.
        """
        if await self._is_stored():
            await self._begin()

    async def _begin(self) -> None:
        """Take up, or make, the cursor; read what lies behind it."""
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
        """Save once more; nobody waits on."""
        if self._is_closed:
            return
        self._is_closed = True
        if self._snapshots is not None:
            self._snapshots.close()
        self._wake()

    # Producers

    async def admit_producer(self, producer_name: str, *, is_transactional: bool) -> None:
        """Let a replicator in when this cluster is the one that it means, and when nothing of its
        former self is undecided.

        Raises:
            NotAllowedError: it means another cluster, or is this one itself.
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
        """Look at a message that comes next in the batch.

        Raises:
            NotAllowedError: it says that it is a copy, and its producer is no replicator (rule
                5.1); or it is a copy of another cluster than its producer is of, or the end of a
                transaction there.
            BrokerMetadataError: it says no place where it should.
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
            return  # an old release of Pulsar does not say it: stored at least once
        if len(self._marks) >= SOURCES_MAX and not self._marks.is_known(copy.source):
            raise NotAllowedError(
                f"{self._label} has copies of {SOURCES_MAX} sources, which is the most; that of "
                f"cluster {copy.source.cluster} would be one more"
            )
        _COPY.add(batch, copy)

    def _check_marker(self, batch: PublishBatch, metadata: MessageMetadata, payload: bytes) -> None:
        """Note what a marker says.

        Raises:
            NotAllowedError: it ends a transaction, and transactions are of one cluster.
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
        """Accept copies that are all new, as nearly always; else take the batch apart."""
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
        """The entries that were judged, in parts of one verdict each, in order."""
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
        """Receipts name copies by their places at the source, and markers as such."""
        ids, highest = list(batch.sequence_ids), list(batch.highest_ids)
        for at in range(len(ids)):
            if at not in copies:
                continue  # of an old release of Pulsar, which compares the ids of its SENDs
            copy = copies[at]
            if copy is not None:
                ids[at], highest[at] = copy.place.position
            else:
                highest[at] = MARKER_RECEIPT
        batch.receipt_ids = (ids, highest)

    def stored(self, batch: PublishBatch, ledger_id: int, first_entry_id: int) -> None:
        """The log has confirmed a batch."""
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
        """Copies may turn up in the log: only its recovery tells."""
        topic = self._topic
        if isinstance(error, LogTerminatedError) or topic.log.terminated is not None:
            return  # refused for sure, and for good
        if _COPY.of(batch) and not topic.is_closed:
            topic.reload("copies may be stored or not")
