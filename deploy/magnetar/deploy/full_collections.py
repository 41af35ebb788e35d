"""When Python's cycle collector may walk everything.

A full collection looks at every container there is and stops all threads meanwhile: with some
hundred thousand ledgers in a write cache that is half a second. By itself the interpreter runs one
whenever the number of containers has grown by a quarter, in the worst moment: while much arrives.
Nearly all garbage here is freed without the collector, and most cycles die young, which its short
collections see to. So full ones come by the clock, and the more one takes, the later is the next.
"""

import asyncio
import gc
from collections.abc import Callable

from magnetar.ledger.ports import Clock

_SHARE_MAX = 1 / 4000
"""Of the time, for full collections: a quarter of what may hold up the event loop by more than it
should in one of a thousand moments."""
_INTERVAL_S_MIN = 60.0
_INTERVAL_S_MAX = 600.0
"""What only a full collection frees waits no longer than this."""
_NEVER = 2**31 - 1


class FullCollections:
    """Full collections on the event loop, from `start` to `stop`."""

    def __init__(self, clock: Clock, collect: Callable[[], object] = gc.collect) -> None:
        self._clock = clock
        self._collect = collect
        self._timer: asyncio.TimerHandle | None = None
        self._thresholds = gc.get_threshold()

    def start(self) -> None:
        self._thresholds = gc.get_threshold()
        gc.set_threshold(*self._thresholds[:2], _NEVER)
        self._wait(_INTERVAL_S_MIN)

    def stop(self) -> None:
        """The interpreter decides again."""
        gc.set_threshold(*self._thresholds)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _wait(self, seconds: float) -> None:
        self._timer = asyncio.get_running_loop().call_later(seconds, self._run)

    def _run(self) -> None:
        started_s = self._clock.monotonic_s()
        self._collect()
        took_s = self._clock.monotonic_s() - started_s
        self._wait(min(_INTERVAL_S_MAX, max(_INTERVAL_S_MIN, took_s / _SHARE_MAX)))
