"""Entries of a Shared subscription that are to be sent again, and how often each was.

Positions wait in a set and leave in log order. Their entries come from the tail cache if they are
still there, else from reads of ranges. Pure bookkeeping is in `RedeliverySet`; `ReplayLoader` does
the reads, a bounded number of entries and bytes at a time.
"""

import asyncio
import heapq
from collections import deque
from collections.abc import Callable, Iterable, Sequence

import structlog

from magnetar.broker.dispatch.source import ReadableLog, ReadLimits
from magnetar.broker.entry import messages_of
from magnetar.broker.tail_cache import TailCache
from magnetar.ledger.errors import LedgerError, LogClosedError, LogFencedError
from magnetar.ledger.position import Position

_log = structlog.get_logger()

_ENTRIES_PER_LOAD_MAX = 200


class RedeliverySet:
    """Positions that wait for redelivery, handed out in log order."""

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
        """Forget the position; its place in the heap is skipped later."""
        self._members.discard(position)
        if not self._members:
            self._heap.clear()

    def take(self, count_max: int) -> list[Position]:
        """The lowest positions not taken yet. They stay members until they are discarded."""
        taken: list[Position] = []
        while self._heap and len(taken) < count_max:
            position = heapq.heappop(self._heap)
            if position in self._members and (not taken or taken[-1] != position):
                taken.append(position)
        return taken

    def give_back(self, positions: Iterable[Position]) -> None:
        """Taken positions that could not be used now."""
        for position in positions:
            if position in self._members:
                heapq.heappush(self._heap, position)

    def clear(self) -> None:
        self._members.clear()
        self._heap.clear()


def contiguous(positions: Sequence[Position]) -> list[tuple[Position, int]]:
    """Ascending positions as (first, count) of runs within one ledger."""
    runs: list[tuple[Position, int]] = []
    for position in positions:
        if runs:
            first, count = runs[-1]
            if position == (first.ledger_id, first.entry_id + count):
                runs[-1] = (first, count + 1)
                continue
        runs.append((position, 1))
    return runs


class ReplayLoader:
    """Fetches the entries of waiting positions. `on_ready` follows every load that took a read."""

    def __init__(
        self,
        log: ReadableLog,
        cache: TailCache,
        limits: ReadLimits,
        *,
        label: str,
        on_ready: Callable[[], None],
    ) -> None:
        self.waiting = RedeliverySet()
        self._log = log
        self._cache = cache
        self._limits = limits
        self._label = label
        self._on_ready = on_ready
        self._loaded: deque[tuple[Position, bytes, int]] = deque()
        self._loading: asyncio.Task[None] | None = None
        self._retry: asyncio.TimerHandle | None = None
        self._failures = 0

    def next_entry(self) -> tuple[Position, bytes, int] | None:
        """The next waiting entry with its number of messages; None: none, or a read is under way.

        The position stays in `waiting` until the caller discards it there.
        """
        while True:
            while self._loaded:
                loaded = self._loaded.popleft()
                if loaded[0] in self.waiting:
                    return loaded
            if self._loading is not None or self._retry is not None or not self._load():
                return None

    def clear(self) -> None:
        """Forget everything."""
        self.waiting.clear()
        self._loaded.clear()
        self._failures = 0
        if self._loading is not None:
            self._loading.cancel()
            self._loading = None
        if self._retry is not None:
            self._retry.cancel()
            self._retry = None

    def _load(self) -> bool:
        """Load the lowest positions; False if that takes a read, or nothing waits."""
        positions = self.waiting.take(_ENTRIES_PER_LOAD_MAX)
        missing: list[Position] = []
        for position in positions:
            run = self._cache.find(position)
            if run is None:
                missing.append(position)
            else:
                index = run.index_of(position)
                self._loaded.append((position, run.entries[index], run.messages[index]))
        if missing:
            self._loading = asyncio.get_running_loop().create_task(self._read(missing))
        return bool(self._loaded)

    async def _read(self, positions: list[Position]) -> None:
        """Read the entries of the positions, up to the bound in bytes."""
        entries: list[tuple[Position, bytes, int]] = []
        done = 0
        room = self._limits.bytes_max
        try:
            for first, count in contiguous(positions):
                if room <= 0:
                    break
                start, found = await self._log.read_range(first, entries_max=count, bytes_max=room)
                wanted = [Position(first.ledger_id, first.entry_id + at) for at in range(count)]
                if start != first:  # the ledger was trimmed away, and all of the run with it
                    for position in wanted:
                        self.waiting.discard(position)
                    done += count
                    continue
                for position, entry in zip(wanted, found, strict=False):
                    entries.append((position, entry, messages_of(entry)))
                    room -= len(entry)
                done += len(found)
                if len(found) < count:
                    break  # the reply was cut short: the rest is read another time
        except (LogFencedError, LogClosedError):
            self._loading = None  # the topic is about to be closed
            return
        except LedgerError as error:
            self._loading = None
            self.waiting.give_back(positions)
            self._retry_later(positions[0], error)
            return
        self._loading = None
        self._failures = 0
        self.waiting.give_back(positions[done:])
        self._loaded = deque(sorted([*self._loaded, *entries]))
        self._on_ready()

    def _retry_later(self, position: Position, error: LedgerError) -> None:
        delay_ms = min(self._limits.retry_ms << min(self._failures, 16), self._limits.retry_ms_max)
        self._failures += 1
        _log.warning(
            "redelivery_read_failed",
            subscription=self._label,
            ledger_id=position.ledger_id,
            entry_id=position.entry_id,
            error=str(error),
            retry_ms=delay_ms,
        )
        self._retry = asyncio.get_running_loop().call_later(delay_ms / 1000, self._on_retry)

    def _on_retry(self) -> None:
        self._retry = None
        self._on_ready()
