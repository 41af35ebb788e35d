"""How far a replicated subscription has come, in terms of other clusters. Pure.

The dispatcher passes the snapshots that lie in the log; a bounded number of them is kept. When the
mark-delete position of the subscription has passed a snapshot, the other clusters are told the
positions in it. Acknowledgements behind a hole wait until it is closed: a snapshot has one position
per cluster, and cannot say more.

When there are too many, the one goes whose neighbours are nearest to each other, and never the
oldest or the newest: which one the mark needs next is not known, and a gap only makes an update
come later (rule 17.21).

Source: geo-replication sheet, sections 11 and 17 (row 21).
"""

from bisect import bisect_right
from collections.abc import Sequence

from magnetar.broker.features.replication.markers import Snapshot, Update
from magnetar.ledger.position import EARLIEST, Position


def _local(snapshot: Snapshot) -> Position:
    return snapshot.local


class SnapshotCache:
    """The snapshots that a subscription's mark-delete position has not passed yet."""

    def __init__(self, snapshots_max: int) -> None:
        """`snapshots_max`: at least 2."""
        self._snapshots_max = snapshots_max
        self._snapshots: list[Snapshot] = []
        """By local position."""
        self._numbers: list[int] = []
        """For each of them, how many had come before it, itself included."""
        self._added = 0

    def __len__(self) -> int:
        return len(self._snapshots)

    def add(self, snapshot: Snapshot) -> None:
        """Keep a snapshot; one of the same position is replaced."""
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
        """Return the newest snapshot at or before a position, and forget it and those before."""
        stop = bisect_right(self._snapshots, mark, key=_local)
        if not stop:
            return None
        found = self._snapshots[stop - 1]
        del self._snapshots[:stop], self._numbers[:stop]
        return found


class Progress:
    """What is known of one replicated subscription of this cluster."""

    def __init__(self, subscription: str, *, snapshots_max: int) -> None:
        self._subscription = subscription
        self.cache = SnapshotCache(snapshots_max)
        self._told: Snapshot | None = None
        """The snapshot that the other clusters were told last."""
        self._tells_again = False
        self._mark = EARLIEST
        """The mark-delete position at the last look."""
        self._start: Position | None = None
        """The next entry that was not acknowledged; see `is_new_start`."""
        self._mark_of_peer: Position | None = None
        """Where an update of another cluster has moved the mark to."""

    @property
    def told_through(self) -> Position:
        """Everything up to here is covered by what the other clusters were told last."""
        return self._told.local if self._told is not None else EARLIEST

    def moved_by_peer(self, mark: Position) -> None:
        """An update of another cluster has moved the mark: who told us needs not be told."""
        self._mark_of_peer = mark

    def passed_markers(self, before: Position, mark: Position) -> None:
        """Markers were passed, and nothing else: who moved the mark before them has moved it."""
        if before == self._mark_of_peer:
            self._mark_of_peer = mark

    def is_new_start(self, position: Position) -> bool:
        """Return whether the next entry that is not acknowledged is another one than at the last
        call."""
        is_new = position != self._start
        self._start = position
        return is_new

    def not_told(self) -> None:
        """The last update could not be written."""
        self.tell_again()

    def tell_again(self) -> None:
        """Have the next look return once more what the other clusters were told last: they may not
        have kept it."""
        self._tells_again = True

    def look(self, mark: Position, recent: Sequence[Snapshot]) -> Update | None:
        """Return what the other clusters are to be told; None: nothing new.

        Args:
            mark: the mark-delete position now.
            recent: the newest snapshots of the topic, oldest first.
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
