"""The index of origins of one topic, and the reads that fill in what was stored before it began.

Copies are noted as they are stored. What lies before is read only when somebody needs it, backwards
from what is known, up to a bound of entries for each time that the topic is loaded. What is
acknowledged of older messages is not told, and they come again after a failover.

Source: geo-replication sheet, section 18.8.
"""

import asyncio

from magnetar.broker.base.errors import BrokerMetadataError
from magnetar.broker.features.replication.copies import Copy, copy_in
from magnetar.broker.features.replication.source_marks import NO_INCARNATION
from magnetar.broker.features.replication.subscriptions.origins import Origin, OriginIndex
from magnetar.broker.topic.surroundings import TopicLog
from magnetar.ledger.position import Position
from magnetar.sdk.wire import MalformedPayloadError, split_payload


def origin_of(copy: Copy | None) -> Origin | None:
    """Return the origin of a copy; None: it does not say it, or not so that others could use it.

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
        """
        Args:
            entries_max: entries that are read to know what was stored before.
            runs_max: runs of the index.
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
        """Return whether a read would tell more about the entries behind a position."""
        low = self.index.low
        if self._left <= 0 or low <= self._log.first_position():
            return False
        before = self._log.previous_position(low)
        return before.entry_id >= 0 and before > max(needed, self.index.floor)

    async def reach(self, needed: Position) -> None:
        """Know the entries behind a position, as far back as the bounds allow.

        Raises:
            LedgerError: they cannot be read now.
        """
        async with self._lock:
            while self.lacks(needed):
                await self._read_back(needed)
                await asyncio.sleep(0)  # others have their turn

    async def _read_back(self, needed: Position) -> None:
        """
        Raises:
            LedgerError
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
            first, entries = await log.read_range(
                position,
                entries_max=last.entry_id - position.entry_id + 1,
                bytes_max=self._read_bytes,
            )
            if first != position or not entries:
                self._left = 0  # it was trimmed
                return
            self._left -= len(entries)
            for at, entry in enumerate(entries):
                is_other, origin = note_of(entry)
                if is_other:
                    found.append((Position(first.ledger_id, first.entry_id + at), origin))
            position = Position(first.ledger_id, first.entry_id + len(entries))
        if index.low == low:  # else the index has forgotten meanwhile what is next to it
            index.extend_back(start, found)


def note_of(entry: bytes) -> tuple[bool, Origin | None]:
    """Return whether a stored entry is other than a message of this cluster, and its origin; None:
    it is a marker, or does not say it."""
    try:
        metadata, _ = split_payload(entry)
        if metadata.HasField("marker_type"):
            return True, None
        if not metadata.HasField("replicated_from"):
            return False, None
        return True, origin_of(copy_in(metadata))
    except (MalformedPayloadError, BrokerMetadataError):
        return True, None
