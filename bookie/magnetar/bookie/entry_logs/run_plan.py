"""Planning of a flush: cuts and merges the runs in a write buffer into runs of an entry log.

Pure. The work is per block, not per entry, except where blocks overlap: there the newest copy of
each entry wins, and the entries are handled one by one.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain, pairwise
from typing import NamedTuple

from magnetar.bookie.engine.write_cache import LedgerRuns
from magnetar.bookie.entry_logs.entry_log import ID_SPAN_MAX
from magnetar.bookie.entry_logs.packet_run import PacketRun, stop_within


class Piece(NamedTuple):
    """The packets at positions `start` up to `stop` of a run in memory."""

    run: PacketRun
    start: int
    stop: int

    @property
    def first(self) -> int:
        return self.run.id_at(self.start)

    @property
    def last(self) -> int:
        return self.run.id_at(self.stop - 1)

    @property
    def entries(self) -> int:
        return self.stop - self.start

    @property
    def packets_bytes(self) -> int:
        if self.entries == self.run.count:
            return self.run.packets_bytes
        offsets = self.run.offsets()
        return offsets[self.stop] - offsets[self.start]

    def ids(self) -> Sequence[int]:
        ids = self.run.ids
        return range(self.first, self.last + 1) if ids is None else ids[self.start : self.stop]


class PlannedRun(NamedTuple):
    """Pieces in ascending order that will be one run of the log."""

    pieces: list[Piece]
    entries: int
    packets_bytes: int

    @property
    def first(self) -> int:
        return self.pieces[0].first

    @property
    def last(self) -> int:
        return self.pieces[-1].last

    @property
    def is_contiguous(self) -> bool:
        return self.last - self.first + 1 == self.entries

    def ids(self) -> Iterator[int]:
        return chain.from_iterable(piece.ids() for piece in self.pieces)

    def stretches(self) -> Iterator[tuple[int, int]]:
        """Yield first and last id of each maximal stretch of contiguous ids."""
        if self.is_contiguous:
            yield self.first, self.last
            return
        first = last = self.first
        for entry_id in self.ids():
            if entry_id > last + 1:
                yield first, last
                first = entry_id
            last = entry_id
        yield first, last


def plan_sorted(
    ledgers: Mapping[int, LedgerRuns], *, entries_max: int, bytes_max: int
) -> Iterator[tuple[int, PlannedRun]]:
    """Yield ledger and run for all ledgers of a buffer, in ascending order.

    The entries of a ledger lie side by side, as readers of a ledger need them.
    """
    for ledger_id in sorted(ledgers):
        runs = plan_runs(ledgers[ledger_id], entries_max=entries_max, bytes_max=bytes_max)
        for run in runs:
            yield ledger_id, run


def plan_runs(runs: LedgerRuns, *, entries_max: int, bytes_max: int) -> list[PlannedRun]:
    """Return the runs to write for a ledger: ascending, disjoint, each entry once.

    A run has at most `entries_max` entries, and at most `bytes_max` bytes of packets unless it is a
    single packet.
    """
    whole = _whole(runs, entries_max=entries_max, bytes_max=bytes_max)
    if whole is not None:
        return [whole]
    planned: list[PlannedRun] = []
    pieces: list[Piece] = []
    entries = size = 0
    for piece in bounded(_pieces(runs), entries_max=entries_max, bytes_max=bytes_max):
        piece_bytes = piece.packets_bytes
        if pieces and (
            entries + piece.entries > entries_max
            or size + piece_bytes > bytes_max
            or piece.last - pieces[0].first > ID_SPAN_MAX
        ):
            planned.append(PlannedRun(pieces, entries, size))
            pieces, entries, size = [], 0, 0
        pieces.append(piece)
        entries += piece.entries
        size += piece_bytes
    planned.append(PlannedRun(pieces, entries, size))
    return planned


def _whole(runs: LedgerRuns, *, entries_max: int, bytes_max: int) -> PlannedRun | None:
    """Return one run of all blocks if they fit and do not overlap, else None.

    This is the normal case of a ledger that gets few entries at a time.
    """
    ordered = runs.runs
    if not runs.ascending or runs.last - ordered[0].first > ID_SPAN_MAX:
        return None
    entries = sum([run.count for run in ordered])
    size = sum([run.packets_bytes for run in ordered])
    if entries > entries_max or size > bytes_max:
        return None
    return PlannedRun([Piece(run, 0, run.count) for run in ordered], entries, size)


def _pieces(runs: LedgerRuns) -> list[Piece]:
    ordered = runs.runs
    if not runs.ascending:
        ordered = sorted(ordered, key=lambda run: run.first)
        if any(below.last >= above.first for below, above in pairwise(ordered)):
            return _newest_pieces(runs.runs)
    return [Piece(run, 0, run.count) for run in ordered]


def _newest_pieces(runs: Sequence[PacketRun]) -> list[Piece]:
    """Reduce overlapping runs, oldest first, to the newest copy of each entry."""
    newest: dict[int, tuple[PacketRun, int]] = {}
    for run in runs:
        for position in range(run.count):
            newest[run.id_at(position)] = (run, position)
    pieces: list[Piece] = []
    for _, (run, position) in sorted(newest.items(), key=lambda item: item[0]):
        if pieces and pieces[-1].run is run and pieces[-1].stop == position:
            pieces[-1] = pieces[-1]._replace(stop=position + 1)
        else:
            pieces.append(Piece(run, position, position + 1))
    return pieces


def bounded(pieces: Iterable[Piece], *, entries_max: int, bytes_max: int) -> Iterator[Piece]:
    """Yield the pieces, with those that are too large cut."""
    for piece in pieces:
        if piece.entries <= entries_max and (
            piece.packets_bytes <= bytes_max and piece.last - piece.first <= ID_SPAN_MAX
        ):
            yield piece
            continue
        run, start, end = piece
        offsets = run.offsets()
        while start < end:
            stop = stop_within(offsets, start, min(start + entries_max, end), bytes_max)
            while run.id_at(stop - 1) - run.id_at(start) > ID_SPAN_MAX:
                stop -= 1
            yield Piece(run, start, stop)
            start = stop


def plan_in_order(
    ledgers: Mapping[int, LedgerRuns], *, entries_max: int, bytes_max: int
) -> Iterator[tuple[int, PlannedRun]]:
    """Yield ledger and run for all blocks of all ledgers, in the order in which the blocks arrived.

    Blocks that are too large are cut. For the `interleaved` engine: blocks that arrive together lie
    together, whichever ledger they belong to, and nothing is merged. Entries that were added twice
    are written twice; the later run counts.

    A run has at most `entries_max` entries, and at most `bytes_max` bytes of packets unless it is a
    single packet.
    """
    arrived = sorted(
        (arrival, ledger_id, at)
        for ledger_id, runs in ledgers.items()
        for at, arrival in enumerate(runs.arrivals)
    )
    for _, ledger_id, at in arrived:
        run = ledgers[ledger_id].runs[at]
        whole = Piece(run, 0, run.count)
        for piece in bounded([whole], entries_max=entries_max, bytes_max=bytes_max):
            yield ledger_id, PlannedRun([piece], piece.entries, piece.packets_bytes)
