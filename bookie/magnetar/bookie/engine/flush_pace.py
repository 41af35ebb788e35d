"""The pace of flushes: a flush that is not urgent is spread over a while.

A journal's sync waits for other writes to the same disk. A flush at full speed keeps that disk busy
without a pause, and acknowledgements stand still meanwhile. A flush in parts, with a rest after
each, leaves the disk to the journals in between. Next to three writers that flush at full speed, 99
of 100 syncs of a journal took up to 17 ms; next to three that rest, 3-5 ms.

The index takes the processor rather than the disk: the records of a thousand ledgers take 30 ms of
it, and bookies that get the same entries flush at the same moment. So index writes rest, too.

The rests end when the flush becomes urgent: a caller waits for it, or new adds need its room soon.
A flush that follows the previous one within the spread time does not rest at all: the disk has
enough to do.
"""

import math
import threading

from magnetar.ledger.ports import Clock

PART_BYTES = 1 << 20
"""Bytes written between two rests."""
_WORK_S = 0.001
"""Seconds of computing after which a flush rests."""
_WORK_S_MAX = 0.005
"""Upper bound, in seconds, on the computing that one piece counts for: a longer piece waited for
the processor."""
_REST_PER_WORK = 4
"""Seconds of rest for each second of computing."""


class FlushPace:
    """Pace of one storage's flushes. The event loop begins and hurries it; the flush worker keeps
    it."""

    def __init__(self, spread_s: float, clock: Clock) -> None:
        """`spread_s`: how long a gentle flush may take; 0: as short as possible."""
        self._spread_s = spread_s
        self._clock = clock
        self._hurry = threading.Event()
        self._begun_s = -math.inf
        self._started_s = 0.0
        self._bytes = self._written_bytes = 0
        self._rested_s = self._rest_left_s = 0.0

    def begin(self, *, is_gentle: bool) -> None:
        """Prepare for a flush that is about to be handed to the worker."""
        now_s = self._clock.monotonic_s()
        is_soon = now_s - self._begun_s < self._spread_s
        self._begun_s = now_s
        if is_gentle and self._spread_s > 0 and not is_soon:
            self._hurry.clear()
        else:
            self._hurry.set()

    def hurry(self) -> None:
        """End the rests of the running flush."""
        self._hurry.set()

    # On the flush worker

    def rest_from_work(self) -> None:
        """Rest if a millisecond was computed since the last rest; called between small pieces.

        The rest gives a turn to the event loop, to journals and to other bookies on the same
        processors. In total, these rests of one flush are no longer than the spread time.
        """
        now_s = self._clock.monotonic_s()
        worked_s = now_s - self._rested_s
        if worked_s < _WORK_S or self._rest_left_s <= 0:
            return
        rest_s = _REST_PER_WORK * min(worked_s, _WORK_S_MAX)
        self._hurry.wait(rest_s)
        self._rest_left_s -= rest_s
        self._rested_s = self._clock.monotonic_s()

    @property
    def is_gentle(self) -> bool:
        return not self._hurry.is_set()

    def start(self, size_bytes: int) -> None:
        """Note that the worker begins to write `size_bytes`."""
        self._started_s = self._rested_s = self._clock.monotonic_s()
        self._rest_left_s = self._spread_s
        self._bytes = max(1, size_bytes)
        self._written_bytes = 0

    def rest(self, written_bytes: int) -> None:
        """Wait until it is time for the next part, after `written_bytes` more were written and
        synced."""
        self._written_bytes += written_bytes
        share = min(1.0, self._written_bytes / self._bytes)
        left_s = self._started_s + self._spread_s * share - self._clock.monotonic_s()
        if left_s > 0:
            self._hurry.wait(left_s)
