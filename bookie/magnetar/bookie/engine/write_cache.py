"""The write cache: changes that are not yet in the entry log and the index.

A `WriteBuffer` collects blocks, ledger states and deletions. The storage has two: the active one
takes changes and belongs to the event loop; the one being flushed is frozen, so that the flush
thread and reads may both look at it. A newer buffer wins over an older one, both over the index.
"""

from array import array
from bisect import bisect_right
from collections.abc import Callable, Sequence
from typing import NamedTuple

from magnetar.bookie.entry_logs.packet_run import ENTRY_ID_MAX, PacketRun, block_run
from magnetar.bookie.indexes.location_index import no_pause
from magnetar.bookie.storage import LedgerState
from magnetar.ledger.wire import EntryBlock

RUN_OVERHEAD_BYTES = 256
"""Bytes that a block costs beside its own: the run object, its ids, its place in the lists."""

CHANGE_OVERHEAD_BYTES = 256
"""Bytes of memory for a ledger state or a deletion."""

_GAP_ID_BYTES = 8


class Found(NamedTuple):
    """Where to read an entry in a buffer."""

    run: PacketRun | None
    """The newest run that holds the entry; None if the buffer has none."""
    ceiling: int
    """An id above the entry, and at most the smallest one that a newer run of this buffer holds.

    Only ids below it may be read from `run`, or from anything older than this buffer.
    """


class _Layer:
    """Runs of one ledger that do not overlap, in the order of their ids."""

    __slots__ = ("_firsts", "last", "runs")

    def __init__(self) -> None:
        self.runs: list[PacketRun] = []
        self._firsts: list[int] = []
        self.last = -1

    def append(self, run: PacketRun) -> None:
        """Add a run that lies above this layer."""
        self.last = run.last
        self.runs.append(run)
        self._firsts.append(run.first)

    def insert(self, run: PacketRun) -> bool:
        """Add a run between others, in place of those that it hides; False if it overlaps more."""
        stop = bisect_right(self._firsts, run.last)
        start = bisect_right(self._firsts, run.first)
        if start > 0 and self.runs[start - 1].last >= run.first:
            start -= 1
        if not all(_hides(run, each) for each in self.runs[start:stop]):
            return False
        self.runs[start:stop] = [run]
        self._firsts[start:stop] = [run.first]
        self.last = self.runs[-1].last
        return True

    def extend(self, above: "_Layer") -> None:
        """Add the runs of a layer that lies above this one."""
        self.last = above.last
        self.runs.extend(above.runs)
        self._firsts.extend(above._firsts)

    def find(self, entry_id: int) -> Found:
        if entry_id > self.last:
            return _NOTHING
        after = bisect_right(self._firsts, entry_id)
        next_first = self._firsts[after] if after < len(self._firsts) else ENTRY_ID_MAX
        if after > 0:
            run = self.runs[after - 1]
            if run.holds(entry_id):
                return Found(run, next_first)
            if entry_id < run.last:
                return Found(None, run.next_held(entry_id))
        return Found(None, next_first)


class LedgerRuns:
    """The runs of one ledger in the order in which they were added, and in layers.

    Usually every run lies above all earlier ones, and one layer has them all. A run that does not,
    for example of a recovery that writes entries back, gets into a later layer: the first one for
    which the run lies above everything in it and in the layers after it; else into the last one, if
    it fits between its runs or hides some of them; else into a new one. So where runs of two layers
    overlap, the later layer has the newer run. Many layers come only of runs that overlap each
    other in part, each time again.

    Finding an entry costs one bisection per layer. A search of the runs one by one would make a
    long read quadratic, on the event loop, after a single repeated add.
    """

    __slots__ = ("_layers", "arrivals", "last", "runs", "size_bytes")

    def __init__(self) -> None:
        self.runs: list[PacketRun] = []
        self.arrivals = array("Q")
        """Number of each run in the order of arrival, over all ledgers of the buffer."""
        self._layers = [_Layer()]
        self.last = -1
        self.size_bytes = 0

    @property
    def ascending(self) -> bool:
        """Whether every run lies above all earlier ones, which is the normal case."""
        return len(self._layers) == 1

    def append(self, run: PacketRun, size_bytes: int, arrival: int = 0) -> None:
        self._place(run)
        self.runs.append(run)
        self.arrivals.append(arrival)
        self.size_bytes += size_bytes

    def extend(self, newer: "LedgerRuns") -> None:
        """Add all runs of a newer buffer, whose arrival numbers continue those here."""
        if newer.runs[0].first > self.last and newer.ascending:
            self._layers[0].extend(newer._layers[0])
            self.last = newer.last
        else:
            for run in newer.runs:
                self._place(run)
        self.runs.extend(newer.runs)
        self.arrivals.extend(newer.arrivals)
        self.size_bytes += newer.size_bytes

    def _place(self, run: PacketRun) -> None:
        """Add a run to its layer."""
        layers = self._layers
        if run.first > self.last:
            self.last = run.last
            layers[0].append(run)
            return
        self.last = max(self.last, run.last)
        at = len(layers)
        while layers[at - 1].last < run.first:
            at -= 1
        if at == len(layers):
            if at > 1 and layers[-1].insert(run):
                return
            layers.append(_Layer())
        layers[at].append(run)

    def find(self, entry_id: int) -> Found:
        if len(self._layers) == 1:
            return self._layers[0].find(entry_id)
        ceiling = ENTRY_ID_MAX
        for layer in reversed(self._layers):
            found = layer.find(entry_id)
            ceiling = min(ceiling, found.ceiling)
            if found.run is not None:
                # Newer runs of earlier layers lie above the whole run.
                return Found(found.run, min(ceiling, found.run.last + 1))
        return Found(None, ceiling)

    def drop_layers(self) -> None:
        """Drop the references of the layers to the runs, which are not found any more."""
        self._layers = [_Layer()]


def _hides(newer: PacketRun, older: PacketRun) -> bool:
    """Whether a run holds all entries of another one."""
    if newer.ids is None:
        return newer.first <= older.first and older.last <= newer.last
    return newer.ids == older.ids


_NOTHING = Found(None, ENTRY_ID_MAX)


class WriteBuffer:
    """Blocks, ledger states and deletions that are not yet in the entry log and the index."""

    def __init__(self) -> None:
        self.ledgers: dict[int, LedgerRuns] = {}
        self.states: dict[int, LedgerState] = {}
        self.deleted: set[int] = set()
        """Ledgers deleted since the buffer began; for them, nothing older than the buffer
        counts."""
        self.are_deletions_durable = False
        """Whether the index has the deletions already, without the rest of the buffer."""
        self.size_bytes = 0
        self._arrivals = 0

    @property
    def is_empty(self) -> bool:
        return not (self.ledgers or self.states or self.deleted)

    def block_bytes(self) -> int:
        """Return about the bytes that the blocks take in an entry log."""
        return sum(
            runs.size_bytes - RUN_OVERHEAD_BYTES * len(runs.runs) for runs in self.ledgers.values()
        )

    def add(self, ledger_id: int, block: EntryBlock, entry_ids: Sequence[int]) -> None:
        """Add a block; its bytes are shared with the caller."""
        run = block_run(block, entry_ids)
        size_bytes = len(block.data) + RUN_OVERHEAD_BYTES
        if run.ids is not None:
            size_bytes += _GAP_ID_BYTES * run.count
        runs = self.ledgers.get(ledger_id)
        if runs is None:
            runs = self.ledgers[ledger_id] = LedgerRuns()
        runs.append(run, size_bytes, self._arrivals)
        self._arrivals += 1
        self.size_bytes += size_bytes

    def put_state(self, ledger_id: int, state: LedgerState) -> None:
        if ledger_id not in self.states:
            self.size_bytes += CHANGE_OVERHEAD_BYTES
        self.states[ledger_id] = state

    def delete_ledger(self, ledger_id: int) -> None:
        """Drop the buffer's data of the ledger and hide everything older."""
        self._drop(ledger_id)
        self.are_deletions_durable = False
        if ledger_id not in self.deleted:
            self.deleted.add(ledger_id)
            self.size_bytes += CHANGE_OVERHEAD_BYTES

    def find(self, ledger_id: int, entry_id: int) -> Found:
        runs = self.ledgers.get(ledger_id)
        return _NOTHING if runs is None else runs.find(entry_id)

    def last_entry_id(self, ledger_id: int) -> int:
        """Return the highest entry held of the ledger; -1 if none."""
        runs = self.ledgers.get(ledger_id)
        return -1 if runs is None else runs.last

    def absorb(self, newer: "WriteBuffer") -> None:
        """Take over everything of a newer buffer, as if it had been added here."""
        for ledger_id in newer.deleted:
            self.delete_ledger(ledger_id)
        for ledger_id, runs in newer.ledgers.items():
            runs.arrivals = array("Q", [self._arrivals + arrival for arrival in runs.arrivals])
            mine = self.ledgers.get(ledger_id)
            if mine is None:
                self.ledgers[ledger_id] = runs
            else:
                mine.extend(runs)
            self.size_bytes += runs.size_bytes
        self._arrivals += newer._arrivals
        for ledger_id, state in newer.states.items():
            self.put_state(ledger_id, state)

    def free(self, pause: Callable[[], None] = no_pause) -> None:
        """Free the memory piece by piece; the buffer must not be used any more.

        `pause` is called between pieces, and may block. Freeing tens of megabytes at once takes
        milliseconds, in which nothing else runs.
        """
        while self.states:
            self.states.popitem()
            pause()
        while self.ledgers:
            _, runs = self.ledgers.popitem()
            runs.drop_layers()  # they would keep what is popped below
            while runs.runs:
                runs.runs.pop()
                pause()

    def _drop(self, ledger_id: int) -> None:
        runs = self.ledgers.pop(ledger_id, None)
        if runs is not None:
            self.size_bytes -= runs.size_bytes
        if self.states.pop(ledger_id, None) is not None:
            self.size_bytes -= CHANGE_OVERHEAD_BYTES
