"""The next index of a log: found in its last entries, and in the property of its node.

An index is never given twice, and never becomes smaller. Usually the last entry tells the next
index. Entries without an index may follow it. Some are from a time when the index was switched off;
the property then tells the next index. Others are from an older release, which knew neither. Then
the newest entry that has an index is searched for, up to a limit. Beyond the limit, the index skips
all numbers that the entries of the log could have.
"""

from dataclasses import dataclass
from typing import Final

from magnetar.broker.base.entry_metadata import EntryMetadata, metadata_in
from magnetar.broker.features.message_index.index_record import IndexRecord
from magnetar.broker.topic.positions import ListedLog, entries_in, nth_position
from magnetar.sdk.wire import MESSAGES_PER_ENTRY_MAX

LOOK_BACK_ENTRIES_MAX: Final = 10_000
"""Entries without an index that a search reads back from the end of the log, at most."""

_READ_ENTRIES = 500
_READ_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class IndexEnd:
    """The end of the indexed messages of a log."""

    next: int
    """Index of the next message."""
    unbroken_since: int
    """Every message from this index on is in an entry that has an index."""


async def find_end(log: ListedLog, record: IndexRecord | None) -> IndexEnd:
    """Find the next index, and since when indexes are unbroken.

    Raises:
        LedgerError: the last entries cannot be read now.
    """
    stored_next = record.next if record is not None else 0
    total = entries_in(log)
    newest = await _newest(log, total, 1) if total else None
    if newest is not None:
        found_next = _behind(newest)
        if found_next >= stored_next:
            return IndexEnd(found_next, newest.unbroken_since)
        return IndexEnd(stored_next, stored_next)
    if not total or record is None or not record.is_written:
        return IndexEnd(stored_next, stored_next)
    looked_at = 1
    while newest is None and looked_at < min(total, LOOK_BACK_ENTRIES_MAX):
        count = min(_READ_ENTRIES, total - looked_at)
        newest = await _newest(log, total - looked_at, count)
        looked_at += count
    if newest is not None:
        stored_next = max(stored_next, _behind(newest))
    elif looked_at < total:
        stored_next += total * MESSAGES_PER_ENTRY_MAX
    return IndexEnd(stored_next, stored_next)


def _behind(metadata: EntryMetadata) -> int:
    return 0 if metadata.index is None else metadata.index + 1


async def _newest(log: ListedLog, stop: int, count: int) -> EntryMetadata | None:
    """Return the newest prefix among `count` entries before number `stop`; None if none has one."""
    found: EntryMetadata | None = None
    at = stop - count
    while at < stop:
        position = nth_position(log, at)
        first, entries = await log.read_range(
            position, entries_max=stop - at, bytes_max=_READ_BYTES
        )
        if first != position or not entries:
            break  # trimmed meanwhile
        for entry in entries:
            found = metadata_in(entry) or found
        at += len(entries)
    return found
