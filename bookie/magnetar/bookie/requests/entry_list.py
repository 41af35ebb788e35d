"""Lists of the entry ids that are held of a ledger, as pages of a bitmap. Pure.

An `IdSource` has the ids of one run, or those that an index record still holds of it. Sources may
overlap: a page marks an id as held if any source holds it. Layout of a page:
docs/formats/bookie-frame.md.
"""

from bisect import bisect_left
from collections.abc import Sequence
from typing import NamedTuple

from magnetar.bookie.entry_logs.packet_run import PacketRun
from magnetar.ledger.wire_bodies import EntryList


class IdSource(NamedTuple):
    """Ids held within `first` to `last`: those in `ids`, or all if `ids` is None."""

    first: int
    last: int
    ids: Sequence[int] | None

    def at_or_after(self, entry_id: int) -> int | None:
        """Return the smallest held id from `entry_id` on; None if there is none."""
        entry_id = max(entry_id, self.first)
        if self.ids is not None:
            at = bisect_left(self.ids, entry_id)
            if at == len(self.ids):
                return None
            entry_id = self.ids[at]
        return entry_id if entry_id <= self.last else None


def run_source(run: PacketRun) -> IdSource:
    """Return a source with all ids of a run."""
    return IdSource(run.first, run.last, run.ids)


def first_held(sources: Sequence[IdSource], entry_id: int) -> int | None:
    """Return the smallest id that any source holds from `entry_id` on; None if there is none."""
    found = [each for source in sources if (each := source.at_or_after(entry_id)) is not None]
    return min(found, default=None)


def page_of(
    sources: Sequence[IdSource], first: int | None, *, bitmap_bytes_max: int, unread: int | None
) -> EntryList:
    """Return a page with the held ids from `first` on, up to the size limit or to `unread`.

    Args:
        first: the smallest requested id that is held; None if the sources have none.
        unread: where further sources begin that were not read.
    """
    if first is None or (unread is not None and unread <= first):
        return EntryList(-1, -1 if unread is None else unread, b"")
    end = first + 8 * bitmap_bytes_max
    if unread is not None:
        end = min(end, unread)
    behind = [each for each in (first_held(sources, end), unread) if each is not None]
    return EntryList(first, min(behind, default=-1), _bitmap(sources, first, end))


def _bitmap(sources: Sequence[IdSource], first: int, end: int) -> bytes:
    """Return a bitmap with a bit for each id in [first, end), without zero bytes at the end."""
    bitmap = bytearray((end - first + 7) // 8)
    for source in sources:
        low, high = max(first, source.first), min(end - 1, source.last)
        if low > high:
            continue
        if source.ids is None:
            _set_range(bitmap, low - first, high - first + 1)
        else:
            start, stop = bisect_left(source.ids, low), bisect_left(source.ids, high + 1)
            for entry_id in source.ids[start:stop]:
                bit = entry_id - first
                bitmap[bit >> 3] |= 1 << (bit & 7)
    return bytes(bitmap.rstrip(b"\0"))


def _set_range(bitmap: bytearray, start: int, stop: int) -> None:
    """Set the bits [start, stop), whole bytes at once where possible."""
    whole_start, whole_stop = -(-start // 8) * 8, stop // 8 * 8
    if whole_start >= whole_stop:
        whole_start = whole_stop = stop
    for bit in (*range(start, whole_start), *range(whole_stop, stop)):
        bitmap[bit >> 3] |= 1 << (bit & 7)
    size = (whole_stop - whole_start) // 8
    bitmap[whole_start // 8 : whole_start // 8 + size] = b"\xff" * size
