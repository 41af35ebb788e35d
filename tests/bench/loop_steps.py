"""The steps of a bookie's event loop while it was held, with the time of each.

Named methods are wrapped where they are defined, so a bookie can be started unchanged. A step that
runs within another one counts as part of it. The remaining time is the loop's own: receiving from
sockets, sending by itself, and waiting for the interpreter's lock or for a processor.
"""

import functools
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

_WORST_MAX = 5


class Sized(Protocol):
    """Returns how many bytes a call handled, from its arguments."""

    def __call__(self, *args: Any) -> int: ...  # those of any method


@dataclass(frozen=True, slots=True)
class Held:
    """A time for which the loop was held, in milliseconds."""

    late_ms: float
    cpu_ms: float
    """Processor time of the loop's thread."""
    queued_ms: float
    """Time for which the thread was ready, and had no processor."""
    steps: dict[str, dict[str, float]]
    """Per step: `calls`, `ms` in all, `ms_max` of one, `bytes`."""


class LoopSteps:
    """The steps since the last stroke, and the worst times so far."""

    def __init__(self) -> None:
        self._steps: list[tuple[str, float, int]] = []
        self._is_within = False
        self._worst: list[Held] = []

    def watch(self, owner: type, names: Sequence[str], size: Sized = lambda *_: 0) -> None:
        """Time these methods of a class from now on. The class stays changed."""
        for name in names:
            setattr(
                owner, name, self._timed(f"{owner.__name__}.{name}", getattr(owner, name), size)
            )

    def on_stroke(self, late_s: float, cpu_s: float, queued_s: float) -> None:
        """Note that the loop runs again, and how late it is."""
        steps, self._steps = self._steps, []
        worst = self._worst
        if len(worst) == _WORST_MAX and late_s * 1000 <= worst[-1].late_ms:
            return
        worst.append(Held(_ms(late_s), _ms(cpu_s), _ms(queued_s), _summed(steps)))
        worst.sort(key=lambda each: -each.late_ms)
        del worst[_WORST_MAX:]

    def take(self) -> list[Held]:
        """Return the worst times since the last call, the longest first."""
        worst, self._worst = self._worst, []
        return worst

    def _timed(self, label: str, method: Callable[..., Any], size: Sized) -> Callable[..., Any]:
        now = time.perf_counter

        @functools.wraps(method)
        def timed(*args: Any) -> Any:  # those of any method
            if self._is_within:
                return method(*args)
            self._is_within = True
            started_s = now()
            try:
                return method(*args)
            finally:
                self._is_within = False
                self._steps.append((label, now() - started_s, size(*args)))

        return timed


def _summed(steps: Sequence[tuple[str, float, int]]) -> dict[str, dict[str, float]]:
    summed: dict[str, dict[str, float]] = {}
    for label, took_s, size in steps:
        of = summed.setdefault(label, {"calls": 0, "ms": 0.0, "ms_max": 0.0, "bytes": 0})
        of["calls"] += 1
        of["ms"] = round(of["ms"] + took_s * 1000, 3)
        of["ms_max"] = max(of["ms_max"], _ms(took_s))
        of["bytes"] += size
    return summed


def _ms(seconds: float) -> float:
    return round(seconds * 1000, 3)
