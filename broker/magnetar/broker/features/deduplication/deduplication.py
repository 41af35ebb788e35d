"""Deduplication on one topic: which messages are duplicates, and snapshots of the state.

The state follows the log. An id counts as stored when the log confirms it, and a snapshot is taken
in that same moment, together with the position of the last entry in it (defect M19). The snapshot
is stored in a durable cursor, which holds back trimming of the entries that a replay would need.
After an append with an unknown outcome, this broker drops the topic: the next owner decides by the
recovered log. Why that is never wrong: docs/decisions/0023.

Source: protocol sheet, section 7; managed ledger, rule 3.2.
"""

import asyncio
from collections.abc import Awaitable, Callable, Container, Iterable, Iterator, Mapping
from typing import Any, Final

import structlog
from google.protobuf.message import DecodeError

from magnetar.broker.base.errors import BrokerMetadataError, BrokerPersistenceError
from magnetar.broker.base.naming import is_replicator
from magnetar.broker.base.settings.broker import BrokerSettings
from magnetar.broker.features.deduplication.sequence_ids import (
    SEQUENCE_ID_MAX,
    SequenceIds,
    Verdict,
)
from magnetar.broker.features.log_snapshots import LogSnapshots, OpenSnapshotCursor
from magnetar.broker.policies.model import Policies
from magnetar.broker.topic import EntryNotes, Feature, PublishBatch, PublishRows, TopicPort, Work
from magnetar.cursors import Cursor
from magnetar.ledger.errors import LedgerError, LogTerminatedError
from magnetar.ledger.ports import Clock
from magnetar.ledger.position import Position
from magnetar.sdk.wire import MalformedPayloadError, MessageMetadata, Send, split_payload

_log = structlog.get_logger()


def sequence_id_of(entry: bytes) -> tuple[str, int] | None:
    """Return producer name and highest sequence id of a stored entry; None if it has none."""
    try:
        metadata, _ = split_payload(entry)
    except (DecodeError, MalformedPayloadError):
        return None
    if metadata.HasField("marker_type") or is_open_chunk(metadata):
        return None
    if metadata.HasField("replicated_from"):
        return None  # of a producer in another cluster: its place there decides (receiving.py)
    highest = max(metadata.sequence_id, metadata.highest_sequence_id)
    return metadata.producer_name, min(highest, SEQUENCE_ID_MAX)


def is_open_chunk(metadata: MessageMetadata) -> bool:
    """Whether the entry is a chunk that is not the last of its message."""
    chunks: int = metadata.num_chunks_from_msg
    return chunks > 1 and metadata.chunk_id != chunks - 1


def _after_any(_refused: Send) -> bool:
    return True


CURSOR: Final = "pulsar.dedup"
"""Name of the cursor; reserved among subscriptions."""


_SWITCHED: Final = "deduplication is switched on or off"
"""Reason to reopen the topic. Whether ledgers overlap, and whether there is a cursor, must be the
same for everything that is stored in one go (decision 23)."""

_OPEN_CHUNK: Final = EntryNotes[None]("a chunk before the last of its message")


class Deduplication(Feature):
    """Sequence ids of one topic that this broker owns. All methods run on the event loop."""

    def __init__(
        self,
        topic: TopicPort,
        open_cursor: OpenSnapshotCursor,
        settings: BrokerSettings,
        *,
        connected: Container[str],
        clock: Clock,
    ) -> None:
        """Begin without any ids; `restore` loads them.

        Args:
            open_cursor: opens the cursor `CURSOR`, or creates it at the end of the log.
            connected: names of the producers that are connected now.
        """
        self.snapshot_entries = topic.policies.deduplication_snapshot_entries
        """Entries after which the next snapshot is due."""
        self._settings = settings
        self.duplicates = 0
        """Messages that were sent again and not stored again."""
        self._topic = topic
        self._label = str(topic.name)
        self._open_cursor = open_cursor
        self._snapshots: LogSnapshots | None = None
        self._ids = SequenceIds()
        self._connected = connected
        self._clock = clock
        self._waiting: dict[str, list[asyncio.Future[None]]] = {}
        """Producers that wait, by name, until all writes under that name have an outcome."""
        self._is_closed = False

    # Life cycle

    async def restore(self) -> None:
        """Load the ids: the cursor's snapshot, then every entry of the log after it.

        If the topic did not deduplicate before, the cursor begins at the end of the log.

        Raises:
            LedgerError, CursorError: not everything can be read now.
        """
        snapshots = LogSnapshots(
            await self._open_cursor(), self._topic.log, self._encode, clock=self._clock
        )
        now_s = self._clock.monotonic_s()
        ids = SequenceIds(snapshots.stored, now_s=now_s)

        def note(entry: bytes) -> None:
            known = sequence_id_of(entry)
            if known is not None:
                ids.replayed(*known, now_s)

        read = await snapshots.replay(
            note,
            entries_max=self._settings.read_ahead_entries,
            bytes_max=self._settings.read_ahead_bytes,
        )
        self._ids, self._snapshots = ids, snapshots
        snapshots.take_after_entries(self.snapshot_entries)
        _log.info("deduplication_restored", topic=self._label, names=len(ids), entries_read=read)

    follows = frozenset({"deduplication", "deduplication_snapshot_entries"})

    def policies_changed(self, before: Policies) -> None:
        policies = self._topic.policies
        self.snapshot_entries = policies.deduplication_snapshot_entries
        if not policies.deduplication:
            self._topic.reopen(_SWITCHED)

    def look(self) -> Work | None:
        self.snapshots.take_after_s(self._topic.policies.deduplication_snapshot_s)
        return None

    def shown(self) -> Mapping[str, Any]:
        return {"deduplicates": True, "duplicates": self.duplicates}

    def cursors(self) -> Iterable[Cursor]:
        return self._snapshots.cursors() if self._snapshots is not None else ()

    @property
    def snapshots(self) -> LogSnapshots:
        """Snapshots of the sequence ids."""
        assert self._snapshots is not None, "they are restored"
        return self._snapshots

    def rows(self) -> PublishRows:
        return PublishRows(
            checks=(self.check,),
            gates=(self,),
            listeners=(self,),
            closes_after_refusal=_after_any,
        )

    @property
    def entries_behind(self) -> int:
        """Entries that the newest snapshot does not cover: a load would have to read them."""
        return self.snapshots.entries_behind

    @property
    def names(self) -> int:
        """Number of known producer names."""
        return len(self._ids)

    # Producers

    def last_sequence_id(self, producer_name: str) -> int:
        """Return the highest id known for a producer name; -1 if none is known."""
        return self._ids.last_of(producer_name)

    async def settled(self, producer_name: str) -> None:
        """Return when no write under that name is pending, or when the topic is closed.

        The last id that a producer is given must stay true, and a message that it sends again must
        get a definite verdict.
        """
        while not self._is_closed and not self._ids.is_settled(producer_name):
            waiting = asyncio.get_running_loop().create_future()
            self._waiting.setdefault(producer_name, []).append(waiting)
            await waiting

    # Publishing

    def check(
        self, batch: PublishBatch, send: Send, metadata: MessageMetadata, _payload: bytes
    ) -> None:
        """Check the next message of a batch.

        Raises:
            BrokerMetadataError: its metadata, which are all that a replay can read, differ from the
                command, or its sequence id is too high.
        """
        # Called for every message: read the commands as little as possible.
        name, sequence_id = batch.producer_name, send.sequence_id
        if metadata.sequence_id != sequence_id or metadata.producer_name != name:
            if is_replicator(name):
                return
            raise BrokerMetadataError(
                f"{self._label} deduplicates: the message of producer {name} with sequence id "
                f"{sequence_id} says in its metadata that it is {metadata.sequence_id} of "
                f"{metadata.producer_name}"
            )
        if sequence_id > SEQUENCE_ID_MAX or send.highest_sequence_id > SEQUENCE_ID_MAX:
            raise BrokerMetadataError(
                f"{self._label} deduplicates: sequence ids end at {SEQUENCE_ID_MAX}"
            )
        if metadata.num_chunks_from_msg > 1 and is_open_chunk(metadata):
            _OPEN_CHUNK.add(batch, None)

    def accept(self, batch: PublishBatch) -> Iterable[PublishBatch] | None:
        """Accept a batch whose messages are all new, as nearly always; otherwise split it.

        Copies from other clusters pass: `receiving.py` has decided about them.
        """
        if is_replicator(batch.producer_name):
            return None
        if batch.notes is None or _OPEN_CHUNK not in batch.notes:
            batch.highest = self._ids.accept(
                batch.producer_name, batch.sequence_ids, batch.highest_ids, batch.arrived_s
            )
            if batch.highest >= 0:
                return None
        return self._take_apart(batch)

    def _take_apart(self, batch: PublishBatch) -> Iterator[PublishBatch]:
        """Yield the parts of the batch in order, each with one verdict; accept new messages."""
        open_chunks = {at for at, _ in _OPEN_CHUNK.of(batch)}
        verdicts = [
            Verdict.NEW if at in open_chunks else self._judge(batch, at)
            for at in range(len(batch.payloads))
        ]
        start = 0
        for at in range(1, len(verdicts) + 1):
            if at < len(verdicts) and verdicts[at] is verdicts[start]:
                continue
            part = batch.part(start, at)
            if verdicts[start] is Verdict.NEW:
                part.highest = self._highest(part)
            elif verdicts[start] is Verdict.DUPLICATE:
                self.duplicates += part.messages
                part.is_duplicate = True
            else:
                part.refusal = BrokerPersistenceError(
                    f"{self._label}: the same message is being stored: send it again"
                )
            yield part
            start = at

    def _judge(self, batch: PublishBatch, at: int) -> Verdict:
        return self._ids.judge(
            batch.producer_name, batch.sequence_ids[at], batch.highest_ids[at], batch.arrived_s
        )

    @staticmethod
    def _highest(part: PublishBatch) -> int:
        """Return the highest id of the part's entries; -1 if all are chunks before the last."""
        open_chunks = {at for at, _ in _OPEN_CHUNK.of(part)}
        return max(
            (
                max(sequence_id, highest_id)
                for at, (sequence_id, highest_id) in enumerate(
                    zip(part.sequence_ids, part.highest_ids, strict=True)
                )
                if at not in open_chunks
            ),
            default=-1,
        )

    def stored(self, batch: PublishBatch, ledger_id: int, first_entry_id: int) -> None:
        """Note that the log has confirmed an accepted batch."""
        entries = len(batch.payloads)
        name = batch.producer_name
        if batch.highest >= 0:
            self._ids.on_stored(name, batch.highest)
            if self._waiting and name in self._waiting and self._ids.is_settled(name):
                self._wake(name)
        self.snapshots.on_stored(Position(ledger_id, first_entry_id + entries - 1), entries)
        self.snapshots.take_after_entries(self.snapshot_entries)

    def failed(self, batch: PublishBatch, error: LedgerError) -> None:
        """Drop the topic: only the log's recovery tells whether the messages are stored.

        A terminated log, or one that is being terminated, is an exception. It refuses an append
        definitely and for good, and a reload would delay the work that the termination is for.
        """
        topic = self._topic
        if isinstance(error, LogTerminatedError) or topic.log.terminated is not None:
            return
        if not topic.is_closed:
            topic.reload("a message may be stored or not, and the topic deduplicates")

    # Snapshots

    def _encode(self) -> Mapping[str, int]:
        """Return the ids for a snapshot; names beyond the limits are forgotten, or left out."""
        settings = self._settings
        self._ids.forget(
            unused_since_s=self._clock.monotonic_s() - settings.dedup_names_unused_s,
            names_max=settings.dedup_names_max,
            connected=self._connected,
        )
        snapshot = self._ids.snapshot(
            names_max=settings.dedup_names_max, bytes_max=settings.dedup_snapshot_bytes_max
        )
        if len(snapshot) < len(self._ids):
            _log.info(
                "producer_names_left_out",
                topic=self._label,
                names=len(self._ids),
                names_kept=len(snapshot),
            )
        return snapshot

    # Closing

    def close(self) -> None:
        """Take a last snapshot for the cursor's last save, and release all waiting producers."""
        if self._is_closed:
            return
        self._is_closed = True
        if self._snapshots is not None:
            self._snapshots.close()
        for name in list(self._waiting):
            self._wake(name)

    def _wake(self, name: str) -> None:
        for waiting in self._waiting.pop(name):
            if not waiting.done():
                waiting.set_result(None)


class NoDeduplication(Feature):
    """A topic that does not deduplicate.

    It deletes the ids of an earlier time before anything is stored, because no snapshot covers what
    is stored meanwhile.
    """

    def __init__(self, topic: TopicPort, remove_cursor: Callable[[], Awaitable[None]]) -> None:
        """Create the feature. `remove_cursor` deletes the cursor `CURSOR`, if there is one."""
        self._topic = topic
        self._remove_cursor = remove_cursor

    async def restore(self) -> None:
        await self._remove_cursor()

    follows = frozenset({"deduplication"})

    def policies_changed(self, before: Policies) -> None:
        if self._topic.policies.deduplication:
            self._topic.reopen(_SWITCHED)
