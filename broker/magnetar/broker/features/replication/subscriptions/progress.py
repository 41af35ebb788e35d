"""Progress of a replicated subscription in terms of other clusters. Pure.

The dispatcher passes the snapshots in the log, and a bounded number of them is kept. When the
mark-delete position of the subscription has passed a snapshot, the other clusters are told the
positions in it. Acknowledgements after a hole wait until it is closed, because a snapshot has only
one position per cluster.

If there are too many snapshots, the one whose neighbours are nearest to each other is dropped, but
never the oldest or the newest. It is not known which one the mark passes next, and a gap only
delays an update (rule 17.21).

Source: geo-replication sheet, sections 11 and 17 (row 21).
"""

from bisect import bisect_right
from collections.abc import Sequence

from magnetar.broker.features.replication.markers import Snapshot, Update
from magnetar.ledger.position import EARLIEST, Position


def _local(snapshot: Snapshot) -> Position:
    return snapshot.local


class SnapshotCache:
    """Snapshots that a subscription's mark-delete position has not passed yet."""

    def __init__(self, snapshots_max: int) -> None:
        """Begin without snapshots. `snapshots_max`: at least 2."""
        self._snapshots_max = snapshots_max
        self._snapshots: list[Snapshot] = []
        """Snapshots by local position."""
        self._numbers: list[int] = []
        """Running number of each snapshot, in the order of arrival."""
        self._added = 0

    def __len__(self) -> int:
        return len(self._snapshots)

    def add(self, snapshot: Snapshot) -> None:
        """Keep a snapshot; replace one of the same position."""
        snapshots, numbers = self._snapshots, self._numbers
        at = bisect_right(snapshots, snapshot.local, key=_local)
        if at and snapshots[at - 1].local == snapshot.local:
            snapshots[at - 1] = snapshot
            return
        self._added += 1
        snapshots.insert(at, snapshot)
        numbers.insert(at, self._added)
        if len(snapshots) > self._snapshots_max:
            between = range(1, len(snapshots) - 1)
            gone = min(between, key=lambda each: abs(numbers[each + 1] - numbers[each - 1]))
            del snapshots[gone], numbers[gone]

    def take_through(self, mark: Position) -> Snapshot | None:
        """Return the newest snapshot at or before a position; forget it and those before it."""
        stop = bisect_right(self._snapshots, mark, key=_local)
        if not stop:
            return None
        found = self._snapshots[stop - 1]
        del self._snapshots[:stop], self._numbers[:stop]
        return found


class Progress:
    """Progress of one replicated subscription of this cluster."""

    def __init__(self, subscription: str, *, snapshots_max: int) -> None:
        self._subscription = subscription
        self.cache = SnapshotCache(snapshots_max)
        self._told: Snapshot | None = None
        """Snapshot that the other clusters were told last."""
        self._tells_again = False
        self._mark = EARLIEST
        """Mark-delete position at the last look."""
        self._start: Position | None = None
        """Next unacknowledged entry at the last call of `is_new_start`."""
        self._mark_of_peer: Position | None = None
        """Mark-delete position to which an update of another cluster has moved the subscription."""

    @property
    def told_through(self) -> Position:
        """Position up to which the last update covers everything."""
        return self._told.local if self._told is not None else EARLIEST

    def moved_by_peer(self, mark: Position) -> None:
        """Note that an update of another cluster has moved the mark: do not tell it back."""
        self._mark_of_peer = mark

    def passed_markers(self, before: Position, mark: Position) -> None:
        """Note that only markers were passed: the mark still counts as moved by that cluster."""
        if before == self._mark_of_peer:
            self._mark_of_peer = mark

    def is_new_start(self, position: Position) -> bool:
        """Whether the next unacknowledged entry differs from that of the last call."""
        is_new = position != self._start
        self._start = position
        return is_new

    def not_told(self) -> None:
        """Tell again: the last update could not be written."""
        self.tell_again()

    def tell_again(self) -> None:
        """Make the next look return the last update again: others may not have kept it."""
        self._tells_again = True

    def look(self, mark: Position, recent: Sequence[Snapshot]) -> Update | None:
        """Return the update for the other clusters; None if there is nothing new.

        Args:
            mark: present mark-delete position.
            recent: newest snapshots of the topic, oldest first.
        """
        tells_again, self._tells_again = self._tells_again, False
        if mark < self._mark:
            self._told = None  # an operator or a consumer went back
        self._mark = mark
        found = self.cache.take_through(mark)
        at = bisect_right(recent, mark, key=_local)
        if at and (found is None or found.local < recent[at - 1].local):
            found = recent[at - 1]
        told = self._told
        if told is not None and (found is None or found.local <= told.local):
            found = told if tells_again else None
        if found is None or mark == self._mark_of_peer:
            return None
        self._told = found
        return Update(self._subscription, found.positions)
