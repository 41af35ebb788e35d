"""Rates of the last minute from counters that only grow: no work is done per message. Pure.

A counter is sampled once per interval. The rate counts from the sample before the last one. It is
thus an average over one to two intervals, up to the moment of the request.
"""

from typing import Protocol

Counters = tuple[int, ...]


class Sampled(Protocol):
    """An object whose counters have rates."""

    def sample(self, now_ms: int) -> None:
        """Record the counters, once per interval."""
        ...


class Meter:
    """Remembers two samples of some counters."""

    __slots__ = ("_newer", "_older")

    def __init__(self, *counters: int, since_ms: int | None = None) -> None:
        """Begin with these counters at `since_ms`; without it, rates are 0 until a sample."""
        start = (since_ms, counters) if since_ms is not None else None
        self._older: tuple[int, Counters] | None = start
        self._newer = start

    def sample(self, now_ms: int, *counters: int) -> None:
        """Record the counters at the end of an interval."""
        self._older = self._newer
        self._newer = (now_ms, counters)
        if self._older is None:
            self._older = self._newer

    def per_s(self, now_ms: int, *counters: int) -> tuple[float, ...]:
        """Return the rate of each counter per second; `counters` are the present values."""
        if self._older is None:
            return (0.0,) * len(counters)
        since_ms, before = self._older
        if now_ms < since_ms:  # the wall clock was set back; rates resume after two samples
            return (0.0,) * len(counters)
        seconds = max(1e-3, (now_ms - since_ms) / 1000)
        return tuple((now - was) / seconds for now, was in zip(counters, before, strict=True))
