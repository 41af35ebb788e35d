"""Group commit: which of the batches that wait are synced together.

A group is taken when the disk has become free, so whatever was handed over during the sync before
it shares the next one: groups grow by themselves with the latency of the disk and with the load
(adaptive grouping). It is closed for one of these reasons:

    idle     nothing more waits, and groups are not told to wait
    wait     the oldest batch has waited as long as it may
    bytes    one more batch would make it too large
    entries  the same in entries
    close    the journal ends

The time that a batch may wait counts from its hand-over, not from the moment when the thread gets
to it. So after a slow sync the batches behind it are over the limit already: they are all taken, as
far as the group's size allows, before the group is closed. Closing it with the first of them would
make a row of tiny groups of exactly those that waited longest.

The queue is shared by the event loop, which puts, and the journal's thread, which takes.
"""

import queue
from enum import StrEnum
from typing import Generic, NamedTuple, TypeVar

from magnetar.bookie.journaling.journal_format import RECORD_HEAD_BYTES, NewRecord
from magnetar.ledger.ports import Clock

T = TypeVar("T")


class JournalBatch(Generic[T]):
    """Records that are committed together, and what the owner wants back then."""

    __slots__ = ("context", "entries", "epoch", "queued_s", "records", "size_bytes")

    def __init__(self, context: T) -> None:
        self.context = context
        self.records: list[NewRecord] = []
        self.size_bytes = 0
        self.entries = 0
        self.epoch = 0
        self.queued_s = 0.0
        """When it was handed over, on the monotonic clock."""

    def add(self, record: NewRecord, entries: int = 0) -> None:
        self.records.append(record)
        self.size_bytes += RECORD_HEAD_BYTES + len(record.body)
        self.entries += entries


class CloseReason(StrEnum):
    """Why a group takes no more batches. See the module."""

    IDLE = "idle"
    WAIT = "wait"
    BYTES = "bytes"
    ENTRIES = "entries"
    CLOSE = "close"


class Taken(NamedTuple, Generic[T]):
    """A group to be committed; no batches: the journal ends."""

    batches: list[JournalBatch[T]]
    reason: CloseReason


class GroupQueue(Generic[T]):
    """Batches that wait, and the rules by which they become groups."""

    def __init__(
        self, clock: Clock, *, wait_s_max: float, bytes_max: int, entries_max: int
    ) -> None:
        """A batch that is larger than a group may be makes a group of its own."""
        self._clock = clock
        self._wait_s_max = wait_s_max
        self._bytes_max = bytes_max
        self._entries_max = entries_max
        self._waiting: queue.SimpleQueue[JournalBatch[T] | None] = queue.SimpleQueue()
        self._left_over: JournalBatch[T] | None = None
        """Taken from the queue, but not into the last group. The thread's own."""
        self._is_closing = False

    def put(self, batch: JournalBatch[T]) -> None:
        """On the event loop."""
        assert not self._is_closing, "append to a closed journal"
        batch.queued_s = self._clock.monotonic_s()
        self._waiting.put(batch)

    def close(self) -> None:
        """On the event loop: no more batches; those that wait are still taken."""
        self._is_closing = True
        self._waiting.put(None)

    def take(self) -> Taken[T]:
        """On the thread: wait for a batch, and take as many as make a group."""
        first = self._left_over if self._left_over is not None else self._waiting.get()
        self._left_over = None
        if first is None:
            return Taken([], CloseReason.CLOSE)
        until_s = first.queued_s + self._wait_s_max
        group, size, entries = [first], first.size_bytes, first.entries
        while True:
            # Full by itself: no need to look whether another one waits.
            if size >= self._bytes_max:
                return Taken(group, CloseReason.BYTES)
            if entries >= self._entries_max:
                return Taken(group, CloseReason.ENTRIES)
            batch = self._next(until_s)
            if not isinstance(batch, JournalBatch):
                return Taken(group, batch)
            size += batch.size_bytes
            entries += batch.entries
            if size > self._bytes_max or entries > self._entries_max:
                self._left_over = batch
                is_size = size > self._bytes_max
                return Taken(group, CloseReason.BYTES if is_size else CloseReason.ENTRIES)
            group.append(batch)

    def _next(self, until_s: float) -> JournalBatch[T] | CloseReason:
        """The next batch, waiting for it if groups wait; else why there is none."""
        try:
            if not self._wait_s_max or self._is_closing:
                batch = self._waiting.get_nowait()
            else:
                # When the time is up this still takes what waits already.
                left_s = until_s - self._clock.monotonic_s()
                batch = self._waiting.get(timeout=max(0.0, left_s))
        except queue.Empty:
            return CloseReason.WAIT if self._wait_s_max else CloseReason.IDLE
        if batch is None:
            self._waiting.put(None)  # after this group
            return CloseReason.CLOSE
        return batch
