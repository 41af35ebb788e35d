"""Rates of the last minute from counters that only grow: nothing is done per message. Pure.

A counter is sampled once per interval; the rate counts from the sample before the last one, so it
is an average over one to two intervals up to the moment in which somebody asks.
"""

from typing import Protocol

Counters = tuple[int, ...]


class Sampled(Protocol):
    """What has counters whose rates are told."""

    def sample(self, now_ms: int) -> None:
        """Note the counters, once per interval."""
        ...


class Meter:
    """Remembers two samples of some counters."""

    __slots__ = ("_newer", "_older")

    def __init__(self, *counters: int, since_ms: int | None = None) -> None:
        """`since_ms`: when they were so; without it rates are 0 until the first sample."""
        start = (since_ms, counters) if since_ms is not None else None
        self._older: tuple[int, Counters] | None = start
        self._newer = start

    def sample(self, now_ms: int, *counters: int) -> None:
        """One interval has passed."""
        self._older = self._newer
        self._newer = (now_ms, counters)
        if self._older is None:
            self._older = self._newer

    def per_s(self, now_ms: int, *counters: int) -> tuple[float, ...]:
        """The rates of the counters, which are so now."""
        if self._older is None:
            return (0.0,) * len(counters)
        since_ms, before = self._older
        if now_ms < since_ms:  # the wall clock was set back; known again after two samples
            return (0.0,) * len(counters)
        seconds = max(1e-3, (now_ms - since_ms) / 1000)
        return tuple((now - was) / seconds for now, was in zip(counters, before, strict=True))
