"""How fast a flush is written. One that nobody waits for is spread over a while.

A journal's sync waits for what others have begun to write to the same disk. A flush at full speed
keeps that disk busy without a pause, and acknowledgements stand still with it. Parts with a rest
behind each leave the disk to the journals in between: beside three writers that flush at full speed
99 of 100 syncs of a journal took 17 ms at most, and 3-5 ms beside three that rest.

The index is a matter of the processor, not of the disk: the records of a thousand ledgers are 30 ms
of it, and bookies that get the same entries flush at the same moment. So they rest, too.

The rests end when the flush is in a hurry: somebody waits for it, or what is added meanwhile needs
its room soon. A flush that comes sooner behind another one than it may take does not rest at all:
the disk has enough to do.
"""

import math
import threading

from magnetar.ledger.ports import Clock

PART_BYTES = 1 << 20
"""What is written between two rests."""
_WORK_S = 0.001
"""After so much computing a flush rests."""
_WORK_S_MAX = 0.005
"""A piece that took longer was waiting for the processor: it counts as no more than this."""
_REST_PER_WORK = 4
"""Seconds of rest for each second of computing."""


class FlushPace:
    """Of one storage. Begun and hurried by the event loop, kept to by the flush worker."""

    def __init__(self, spread_s: float, clock: Clock) -> None:
        """`spread_s`: how long a flush may take that nobody waits for; 0: as short as it can be."""
        self._spread_s = spread_s
        self._clock = clock
        self._hurry = threading.Event()
        self._begun_s = -math.inf
        self._started_s = 0.0
        self._bytes = self._written_bytes = 0
        self._rested_s = self._rest_left_s = 0.0

    def begin(self, *, is_gentle: bool) -> None:
        """A flush is about to be handed to the worker."""
        now_s = self._clock.monotonic_s()
        is_soon = now_s - self._begun_s < self._spread_s
        self._begun_s = now_s
        if is_gentle and self._spread_s > 0 and not is_soon:
            self._hurry.clear()
        else:
            self._hurry.set()

    def hurry(self) -> None:
        """The flush under way rests no more."""
        self._hurry.set()

    # On the flush worker

    def rest_from_work(self) -> None:
        """Rest if a millisecond was computed since the last rest; called between small pieces.

        The event loop, the journals and, on the same processors, other bookies have their turn
        meanwhile. These rests of one flush are together no longer than it may be spread.
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
        """So much is to be written, from now on."""
        self._started_s = self._rested_s = self._clock.monotonic_s()
        self._rest_left_s = self._spread_s
        self._bytes = max(1, size_bytes)
        self._written_bytes = 0

    def rest(self, written_bytes: int) -> None:
        """So much more was written and synced: wait until it is time for the next part."""
        self._written_bytes += written_bytes
        share = min(1.0, self._written_bytes / self._bytes)
        left_s = self._started_s + self._spread_s * share - self._clock.monotonic_s()
        if left_s > 0:
            self._hurry.wait(left_s)
