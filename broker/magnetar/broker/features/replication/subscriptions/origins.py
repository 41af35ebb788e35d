"""Origins of the entries in one stretch of this log, and the way back. Pure.

The origin of an entry is the place where it was first stored. Copies name it: cluster, incarnation,
ledger and entry. An entry that is no copy has its own position as origin. Copies of one source
arrive in its order, so both positions ascend. Entries that are consecutive here and at their source
share one *run*.

The stretch reaches from the first known entry to the end of the log. Copies are added as they are
stored; older entries are read, backwards (`origin_window.py`). Markers, and copies that do not name
their origin, are runs without a source: they are not told to other clusters.

The number of runs is bounded. Beyond the bound, the newest are kept, half as many. Acknowledgements
before them are not told, and their messages are delivered again after a failover.

Source: geo-replication sheet, section 18.8.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from magnetar.broker.features.replication.acks import OriginAcks
from magnetar.broker.features.replication.source_marks import Source
from magnetar.cursors import AckRange, BatchAck
from magnetar.ledger.position import Position


class Origin(NamedTuple):
    """Place where a copy was first stored."""

    source: Source
    position: Position


class LocalAcks(NamedTuple):
    """Acknowledgements by positions in this log."""

    ranges: list[AckRange]
    batches: list[BatchAck]


class _Run:
    """Consecutive entries of one ledger here, and of one ledger at their source."""

    __slots__ = ("count", "entry_id", "ledger_id", "origin_entry_id", "origin_ledger_id")

    def __init__(self, local: Position, origin: Position) -> None:
        self.ledger_id, self.entry_id = local
        self.origin_ledger_id, self.origin_entry_id = origin
        self.count = 1

    @property
    def local(self) -> Position:
        return Position(self.ledger_id, self.entry_id)

    @property
    def last(self) -> Position:
        return Position(self.ledger_id, self.entry_id + self.count - 1)

    @property
    def origin(self) -> Position:
        return Position(self.origin_ledger_id, self.origin_entry_id)

    @property
    def last_origin(self) -> Position:
        return Position(self.origin_ledger_id, self.origin_entry_id + self.count - 1)

    def continues(self, local: Position, origin: Position) -> bool:
        """Whether an entry comes next after the run, here and at its source."""
        return local == Position(self.ledger_id, self.entry_id + self.count) and origin == Position(
            self.origin_ledger_id, self.origin_entry_id + self.count
        )


def _last(run: _Run) -> Position:
    return run.last


def _last_origin(run: _Run) -> Position:
    return run.last_origin


class _Piece(NamedTuple):
    """A part of a range of entries here, and its origin."""

    first: int
    last: int
    source: Source | None
    origin: Position


class OriginIndex:
    """Origins of the entries from `low` on."""

    def __init__(self, low: Position, *, runs_max: int) -> None:
        """Begin without runs.

        Args:
            low: first entry that will be added.
            runs_max: most runs; at least 2.
        """
        self.low = low
        """First entry of the indexed stretch, which reaches to the end of the log."""
        self.floor = Position(-1, -1)
        """Position up to which everything was forgotten, and is not read again."""
        self._runs_max = runs_max
        self._runs: dict[Source | None, list[_Run]] = {}
        self._count = 0

    def __len__(self) -> int:
        """Return the number of runs."""
        return self._count

    # Filling

    def add(self, local: Position, origin: Origin | None) -> None:
        """Add a copy or marker that is stored after all added entries.

        `origin` is None if the entry has none that could be told. Entries that are no copies are
        not added.
        """
        if local < self.low:
            return  # it is read together with older entries
        source, position = origin if origin is not None else (None, local)
        runs = self._runs.setdefault(source, [])
        if runs and local <= runs[-1].last:
            return
        self._count += _append(runs, local, position)
        if self._count > self._runs_max:
            self._forget_oldest()

    def extend_back(self, low: Position, found: Iterable[tuple[Position, Origin | None]]) -> None:
        """Add the entries read from `low` up to the known ones.

        `found` has the copies, and the entries without an origin that could be told, ascending.
        """
        earlier: dict[Source | None, list[_Run]] = {}
        for local, origin in found:
            source, position = origin if origin is not None else (None, local)
            _append(earlier.setdefault(source, []), local, position)
        for source, runs in earlier.items():
            self._count += len(runs)
            self._runs[source] = [*runs, *self._runs.get(source, ())]
        self.low = low
        if self._count > self._runs_max:
            self._forget_oldest()

    def _forget_oldest(self) -> None:
        """Keep half of the permitted runs: a read back may have added many times too many."""
        kept = max(1, self._runs_max // 2)
        ends = sorted(each.last for runs in self._runs.values() for each in runs)
        self.trim(ends[-1 - kept])

    def trim(self, through: Position) -> None:
        """Forget everything up to a position."""
        self.floor = max(self.floor, through)
        if through < self.low:
            return
        self.low = Position(through.ledger_id, through.entry_id + 1)
        for runs in self._runs.values():
            gone = bisect_right(runs, through, key=_last)
            del runs[:gone]
            self._count -= gone

    # From entries here to origins

    def to_origins(
        self, here: Source, ranges: Sequence[AckRange], batches: Sequence[BatchAck]
    ) -> dict[Source, OriginAcks]:
        """Return the origins of entries here; unknown ones are left out.

        Args:
            here: this cluster, and the incarnation of this log.
        """
        found: dict[Source, list[AckRange]] = {}
        for each in ranges:
            for piece in self._pieces(here, each):
                if piece.source is not None:
                    ledger_id, first = piece.origin
                    last = first + piece.last - piece.first
                    _join(found.setdefault(piece.source, []), AckRange(ledger_id, first, last))
        parts: dict[Source, list[BatchAck]] = {}
        for ledger_id, entry_id, remaining in batches:
            for piece in self._pieces(here, AckRange(ledger_id, entry_id, entry_id)):
                if piece.source is not None:
                    parts.setdefault(piece.source, []).append(BatchAck(*piece.origin, remaining))
        return {
            source: OriginAcks(tuple(found.get(source, ())), tuple(parts.get(source, ())))
            for source in {**found, **parts}
        }

    def _pieces(self, here: Source, of: AckRange) -> Iterator[_Piece]:
        ledger_id, first, last = of
        if ledger_id < self.low.ledger_id:
            return
        if ledger_id == self.low.ledger_id:
            first = max(first, self.low.entry_id)
        copied = [
            piece
            for source, runs in self._runs.items()
            for piece in _overlapping(source, runs, ledger_id, first, last)
        ]
        for piece in sorted(copied, key=lambda each: each.first):
            if first < piece.first:
                yield _Piece(first, piece.first - 1, here, Position(ledger_id, first))
            yield piece
            first = piece.last + 1
        if first <= last:
            yield _Piece(first, last, here, Position(ledger_id, first))

    # From origins to entries here

    def to_locals(self, source: Source, acks: OriginAcks) -> tuple[LocalAcks, OriginAcks]:
        """Return the entries here of another cluster's origins, and those that may still come.

        An origin may still arrive if no later entry of its source is known here.
        """
        runs = self._runs.get(source, [])
        end = runs[-1].last_origin if runs else Position(-1, -1)
        found, waiting = LocalAcks([], []), OriginAcks()
        coming: list[AckRange] = []
        for each in acks.ranges:
            found.ranges.extend(_at_home(runs, each))
            if Position(each.ledger_id, each.last_entry_id) > end:
                first = each.first_entry_id
                if each.ledger_id == end.ledger_id:
                    first = max(first, end.entry_id + 1)
                coming.append(each._replace(first_entry_id=first))
        late: list[BatchAck] = []
        for ledger_id, entry_id, remaining in acks.batches:
            local = list(_at_home(runs, AckRange(ledger_id, entry_id, entry_id)))
            found.batches.extend(BatchAck(at, first, remaining) for at, first, _ in local)
            if Position(ledger_id, entry_id) > end:
                late.append(BatchAck(ledger_id, entry_id, remaining))
        waiting = OriginAcks(tuple(coming), tuple(late))
        found.ranges.sort()
        return found, waiting


def _append(runs: list[_Run], local: Position, origin: Position) -> int:
    """Add an entry after all others; return the number of new runs, 0 or 1."""
    if runs and runs[-1].continues(local, origin):
        runs[-1].count += 1
        return 0
    runs.append(_Run(local, origin))
    return 1


def _join(ranges: list[AckRange], more: AckRange) -> None:
    before = ranges[-1] if ranges else None
    if before and (before.ledger_id, before.last_entry_id + 1) == more[:2]:
        ranges[-1] = before._replace(last_entry_id=more.last_entry_id)
    else:
        ranges.append(more)


def _overlapping(
    source: Source | None, runs: list[_Run], ledger_id: int, first: int, last: int
) -> Iterator[_Piece]:
    at = bisect_left(runs, Position(ledger_id, first), key=_last)
    while at < len(runs) and runs[at].local <= Position(ledger_id, last):
        run = runs[at]
        start, stop = max(first, run.entry_id), min(last, run.last.entry_id)
        origin = run.origin_entry_id + start - run.entry_id
        yield _Piece(start, stop, source, Position(run.origin_ledger_id, origin))
        at += 1


def _at_home(runs: list[_Run], of: AckRange) -> Iterator[AckRange]:
    """Yield the ranges of entries here for a range of origins."""
    ledger_id, first, last = of
    at = bisect_left(runs, Position(ledger_id, first), key=_last_origin)
    while at < len(runs) and runs[at].origin <= Position(ledger_id, last):
        run = runs[at]
        start = max(first, run.origin_entry_id) - run.origin_entry_id + run.entry_id
        stop = min(last, run.last_origin.entry_id) - run.origin_entry_id + run.entry_id
        yield AckRange(run.ledger_id, start, stop)
        at += 1
