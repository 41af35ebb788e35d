"""The index of origins of one topic, and the reads that fill in entries stored before it began.

Copies are added as they are stored. Older entries are read only when they are needed, backwards
from the known ones, up to a number of entries per load of the topic. Acknowledgements of still
older messages are not told, and these messages are delivered again after a failover.

Source: geo-replication sheet, section 18.8.
"""

import asyncio

import structlog

from magnetar.broker.base.errors import BrokerMetadataError
from magnetar.broker.features.replication.copies import Copy, copy_in
from magnetar.broker.features.replication.source_marks import NO_INCARNATION
from magnetar.broker.features.replication.subscriptions.origins import Origin, OriginIndex
from magnetar.broker.topic.surroundings import TopicLog
from magnetar.ledger.errors import (
    LogDataLossError,
    LogTrimmedError,
    NoSuchEntryError,
    NoSuchLedgerError,
    ObjectMissingError,
)
from magnetar.ledger.position import Position
from magnetar.sdk.wire import MalformedPayloadError, split_payload

_log = structlog.get_logger()

_LOST = (
    LogDataLossError,
    LogTrimmedError,
    NoSuchEntryError,
    NoSuchLedgerError,
    ObjectMissingError,
)
"""Errors of entries that are gone for good. Those that an operator corrects are not among them."""


def origin_of(copy: Copy | None) -> Origin | None:
    """Return the origin of a copy; None if it names none that other clusters could use.

    Logs of Apache Pulsar have no incarnation: a place there may be that of another message.
    """
    if copy is None or copy.source.incarnation == NO_INCARNATION:
        return None
    return Origin(copy.source, copy.place.position)


class OriginWindow:
    """The index of origins of one topic, as far back as it was needed."""

    def __init__(
        self,
        log: TopicLog,
        *,
        entries_max: int,
        runs_max: int,
        read_entries: int,
        read_bytes: int,
    ) -> None:
        """Begin at the end of the log.

        Args:
            entries_max: most entries that are read to learn what was stored before.
            runs_max: most runs of the index.
            read_entries: entries of one read of the log.
            read_bytes: bytes of one read of the log.
        """
        last = log.last_confirmed
        self.index = OriginIndex(Position(last.ledger_id, last.entry_id + 1), runs_max=runs_max)
        self._log = log
        self._left = entries_max
        self._read_entries = read_entries
        self._read_bytes = read_bytes
        self._lock = asyncio.Lock()

    @property
    def is_whole(self) -> bool:
        """Whether the index covers the log from its beginning."""
        return self.index.low <= self._log.first_position()

    def lacks(self, needed: Position) -> bool:
        """Whether a read would add entries after a position to the index."""
        low = self.index.low
        if self._left <= 0 or low <= self._log.first_position():
            return False
        before = self._log.previous_position(low)
        return before.entry_id >= 0 and before > max(needed, self.index.floor)

    async def reach(self, needed: Position) -> None:
        """Index the entries after a position, as far back as the bounds allow.

        Behind an entry that is gone, the index ends for good.

        Raises:
            LedgerError: they cannot be read now.
        """
        async with self._lock:
            while self.lacks(needed):
                await self._read_back(needed)
                await asyncio.sleep(0)  # let other tasks run

    async def _read_back(self, needed: Position) -> None:
        """Read and index one portion of entries before the indexed ones.

        Raises:
            LedgerError: they cannot be read now.
        """
        log, index = self._log, self.index
        low = index.low
        last = log.previous_position(low)
        bound = max(needed, index.floor, Position(log.first_position().ledger_id, -1))
        first_id = max(0, last.entry_id + 1 - min(self._read_entries, self._left))
        if bound.ledger_id == last.ledger_id:
            first_id = max(first_id, bound.entry_id + 1)
        position = start = Position(last.ledger_id, first_id)
        found: list[tuple[Position, Origin | None]] = []
        while position <= last:
            try:
                first, entries = await log.read_range(
                    position,
                    entries_max=last.entry_id - position.entry_id + 1,
                    bytes_max=self._read_bytes,
                )
            except _LOST as error:
                _log.warning("origins_lost", position=str(position), reason=str(error))
                self._left = 0  # tried again, it would hold up newer acknowledgements for ever
                return
            if first != position or not entries:
                self._left = 0  # trimmed meanwhile
                return
            for at, entry in enumerate(entries):
                is_other, origin = note_of(entry)
                if is_other:
                    found.append((Position(first.ledger_id, first.entry_id + at), origin))
            position = Position(first.ledger_id, first.entry_id + len(entries))
        # Only now: a portion of which a read failed is read again as a whole.
        self._left -= last.entry_id + 1 - first_id
        if index.low == low:  # otherwise the index has meanwhile forgotten the entries next to it
            index.extend_back(start, found)


def note_of(entry: bytes) -> tuple[bool, Origin | None]:
    """Return whether a stored entry is not a message of this cluster, and its origin.

    The origin is None for a marker, and for a copy that names none.
    """
    try:
        metadata, _ = split_payload(entry)
        if metadata.HasField("marker_type"):
            return True, None
        if not metadata.HasField("replicated_from"):
            return False, None
        return True, origin_of(copy_in(metadata))
    except (MalformedPayloadError, BrokerMetadataError):
        return True, None
