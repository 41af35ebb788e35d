"""Batches of several slices, read at once and handed out in the order of the slices.

Workers put batches, each for the slice that it reads; one consumer takes them. The waiting batches
are bounded in bytes: a worker that is ahead waits for the consumer. The worker of the slice that
the consumer reads now never waits for other slices: it may put a batch whenever none of its own is
waiting. Otherwise all would wait for each other. The limit may therefore be exceeded by one batch.
"""

import threading
from collections import deque

import pyarrow as pa


class OrderedBatches:
    """A queue of batches for any number of workers and one consumer."""

    def __init__(self, slices: int, *, bytes_max: int) -> None:
        self._slices = slices
        self._bytes_max = bytes_max
        self._changed = threading.Condition()
        self._waiting: dict[int, deque[pa.RecordBatch]] = {}
        self._ends: dict[int, BaseException | None] = {}
        """Slices that are read to their end, with None, or up to an error."""
        self._at = 0
        """The slice that the consumer takes batches from."""
        self._next = 0
        """The next slice to give to a worker."""
        self._bytes = 0
        self._is_closed = False
        self.bytes_peak = 0
        """Most bytes that have waited so far."""

    def begin(self) -> int | None:
        """Return the next slice for a worker; None if none is left, or the queue is closed."""
        with self._changed:
            if self._is_closed or self._next == self._slices:
                return None
            self._next += 1
            return self._next - 1

    def put(self, number: int, batch: pa.RecordBatch) -> bool:
        """Add a batch of a slice once there is room for it. Return False if the queue is closed."""
        size = batch.nbytes
        with self._changed:
            self._changed.wait_for(lambda: self._is_closed or self._has_room(number, size))
            if self._is_closed:
                return False
            self._waiting.setdefault(number, deque()).append(batch)
            self._bytes += size
            self.bytes_peak = max(self.bytes_peak, self._bytes)
            self._changed.notify_all()
            return True

    def end(self, number: int, error: BaseException | None = None) -> None:
        """Mark a slice as read, or as failed. The consumer gets the error after the batches before
        it."""
        with self._changed:
            self._ends[number] = error
            self._changed.notify_all()

    def take(self) -> pa.RecordBatch | None:
        """Return the next batch; None after the last one.

        Raises:
            BaseException: the error that the slice ended with.
        """
        with self._changed:
            while True:
                if self._is_closed or self._at == self._slices:
                    return None
                waiting = self._waiting.get(self._at)
                if waiting:
                    batch = waiting.popleft()
                    self._bytes -= batch.nbytes
                    self._changed.notify_all()
                    return batch
                if self._at in self._ends:
                    error = self._ends[self._at]
                    if error is not None:
                        raise error
                    self._waiting.pop(self._at, None)
                    self._at += 1
                    self._changed.notify_all()
                    continue
                self._changed.wait()

    def close(self) -> None:
        """Drop the waiting batches, and stop the workers: the consumer takes no more."""
        with self._changed:
            self._is_closed = True
            self._waiting.clear()
            self._changed.notify_all()

    def _has_room(self, number: int, size: int) -> bool:
        if self._bytes + size <= self._bytes_max:
            return True
        return number == self._at and not self._waiting.get(number)
