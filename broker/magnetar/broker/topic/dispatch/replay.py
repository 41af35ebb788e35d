"""Entries that wait for redelivery, or were left behind: their positions, and how they are read.

Positions wait in a set and leave it in log order. Their entries come from the tail cache if it
still has them, else from range reads. `RedeliverySet` is pure bookkeeping. `ReplayReader` reads a
bounded number of entries and bytes at a time, and `ReplayLoader` combines both.
"""

import heapq
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from magnetar.broker.base.entry import messages_of
from magnetar.broker.base.settings.broker import BrokerSettings
from magnetar.broker.base.weakly import weakly
from magnetar.broker.topic.dispatch.paced_read import PacedRead
from magnetar.broker.topic.dispatch.range_reads import ReadableLog
from magnetar.broker.topic.tail_cache import TailCache
from magnetar.ledger.errors import LedgerError, LogClosedError, LogFencedError
from magnetar.ledger.position import Position

ENTRIES_PER_LOAD_MAX = 200


class LoadedEntry(NamedTuple):
    """A waiting entry that was loaded, with the number of its messages."""

    position: Position
    entry: bytes
    messages: int


class RedeliverySet:
    """Positions that wait for redelivery, returned in log order."""

    def __init__(self) -> None:
        self._members: set[Position] = set()
        self._heap: list[Position] = []

    def __len__(self) -> int:
        return len(self._members)

    def __contains__(self, position: Position) -> bool:
        return position in self._members

    def add(self, position: Position) -> None:
        if position not in self._members:
            self._members.add(position)
            heapq.heappush(self._heap, position)

    def discard(self, position: Position) -> None:
        """Remove the position; its place in the heap is skipped later."""
        self._members.discard(position)
        if not self._members:
            self._heap.clear()

    def discard_through(self, position: Position) -> None:
        """Remove everything at or before the position."""
        for each in [each for each in self._members if each <= position]:
            self.discard(each)

    def take(self, count_max: int) -> list[Position]:
        """Return the lowest positions not taken yet. They stay members until they are discarded."""
        taken: list[Position] = []
        while self._heap and len(taken) < count_max:
            position = heapq.heappop(self._heap)
            if position in self._members and (not taken or taken[-1] != position):
                taken.append(position)
        return taken

    def give_back(self, positions: Iterable[Position]) -> None:
        """Return taken positions that could not be used now."""
        for position in positions:
            if position in self._members:
                heapq.heappush(self._heap, position)

    def clear(self) -> None:
        self._members.clear()
        self._heap.clear()


def contiguous(positions: Sequence[Position]) -> list[tuple[Position, int]]:
    """Return ascending positions as (first, count) of runs within one ledger."""
    runs: list[tuple[Position, int]] = []
    for position in positions:
        if runs:
            first, count = runs[-1]
            if position == (first.ledger_id, first.entry_id + count):
                runs[-1] = (first, count + 1)
                continue
        runs.append((position, 1))
    return runs


class ReplayReader:
    """Reads entries by their positions, one bounded read at a time, and retries after errors.

    `on_read(found, gone, left)` follows every read: the entries in order; positions that no longer
    exist; and positions to request again, because the read reached its bound in bytes, or failed.
    `on_ready` is called after it, when another read can begin.
    """

    def __init__(
        self,
        log: ReadableLog,
        settings: BrokerSettings,
        *,
        label: str,
        on_read: Callable[[list[LoadedEntry], list[Position], list[Position]], None],
        on_ready: Callable[[], None],
    ) -> None:
        self._log = log
        self._bytes_max = settings.read_ahead_bytes
        self._on_read = on_read
        self._on_ready = on_ready
        self._reading = PacedRead(
            settings, failure_event="redelivery_read_failed", label=label, on_ready=on_ready
        )

    @property
    def is_busy(self) -> bool:
        """Whether a read is running, or will be retried after a pause."""
        return self._reading.is_busy

    @property
    def unreadable(self) -> tuple[Position, str] | None:
        """First entry that the last read could not get, and why; None if nothing failed."""
        return self._reading.unreadable

    def read(self, positions: list[Position]) -> None:
        """Begin to read ascending positions; not allowed while busy."""
        self._reading.begin(self._read(positions))

    def stop(self) -> None:
        """Cancel the running read."""
        self._reading.stop()

    async def _read(self, positions: list[Position]) -> None:
        found: list[LoadedEntry] = []
        gone: list[Position] = []
        done = 0
        room = self._bytes_max
        try:
            for first, count in contiguous(positions):
                if room <= 0:
                    break
                start, entries = await self._log.read_range(
                    first, entries_max=count, bytes_max=room
                )
                wanted = positions[done : done + count]
                if start != first:  # the ledger was trimmed, and the whole run with it
                    gone += wanted
                    done += count
                    continue
                for position, entry in zip(wanted, entries, strict=False):
                    found.append(LoadedEntry(position, entry, messages_of(entry)))
                    room -= len(entry)
                done += len(entries)
                if len(entries) < count:
                    break  # the reply was cut short: the rest is read later
        except (LogFencedError, LogClosedError):
            self._reading.give_up()
            return
        except LedgerError as error:
            self._reading.fail(positions[done], error)
            self._on_read(found, gone, positions[done:])
            return
        self._reading.done()
        self._on_read(found, gone, positions[done:])
        self._on_ready()


class ReplayLoader:
    """Loads the entries of waiting positions in log order. `on_ready` follows every read."""

    def __init__(
        self,
        log: ReadableLog,
        cache: TailCache,
        settings: BrokerSettings,
        *,
        label: str,
        on_ready: Callable[[], None],
    ) -> None:
        self.waiting = RedeliverySet()
        self._cache = cache
        self._loaded: list[LoadedEntry] = []
        """Loaded entries, ascending. A list: every subscription has one, and an empty deque takes
        760 bytes."""
        self._being_read: Position | None = None
        """Lowest position that is being read; None if no read runs. Later entries wait even if the
        cache has them: the chunks of a message must keep their order."""
        self._reader = ReplayReader(
            log, settings, label=label, on_read=weakly(self._on_read), on_ready=on_ready
        )

    @property
    def is_reading(self) -> bool:
        return self._reader.is_busy

    @property
    def unreadable(self) -> tuple[Position, str] | None:
        """First waiting entry that cannot be read, and why."""
        found = self._reader.unreadable
        return found if found is not None and found[0] in self.waiting else None

    def next_entry(self) -> LoadedEntry | None:
        """Return the next waiting entry; None if there is none, or a read is running.

        The position stays in `waiting` until the caller discards it there.
        """
        while True:
            before = self._being_read
            while self._loaded and (before is None or self._loaded[0].position < before):
                loaded = self._loaded.pop(0)
                if loaded.position in self.waiting:
                    return loaded
            if self._reader.is_busy or not self._load():
                return None

    def clear(self) -> None:
        """Clear all positions and entries, and cancel the read."""
        self.waiting.clear()
        self._loaded.clear()
        self._being_read = None
        self._reader.stop()

    def _load(self) -> bool:
        """Load the lowest positions; return False if that needs a read, or nothing waits."""
        positions = self.waiting.take(ENTRIES_PER_LOAD_MAX)
        missing: list[Position] = []
        for position in positions:
            run = self._cache.find(position)
            if run is None:
                missing.append(position)
            else:
                index = run.index_of(position)
                self._loaded.append(LoadedEntry(position, run.stored(index), run.messages[index]))
        if missing:
            self._being_read = missing[0]
            self._reader.read(missing)
        return bool(self._loaded)

    def _on_read(
        self, found: list[LoadedEntry], gone: list[Position], left: list[Position]
    ) -> None:
        self._being_read = None
        for position in gone:
            self.waiting.discard(position)
        self.waiting.give_back(left)
        self._loaded = sorted([*self._loaded, *found])
