"""Rates from counters: their growth between two rounds, over the time between. Pure.

What was not there in the round before counts from zero, and so does what counts from the start
again (its counters have become smaller). What has only zeros costs nothing to remember.
"""

from collections.abc import Hashable
from typing import Generic, TypeVar

Key = TypeVar("Key", bound=Hashable)
Numbers = tuple[float, ...]


class Rates(Generic[Key]):
    """Rates per second of several counters of each key, as of the last round."""

    def __init__(self, counters: int) -> None:
        """`counters`: how many each key has."""
        self.nothing: Numbers = (0.0,) * counters
        self._before: dict[Key, Numbers] = {}
        self._now: dict[Key, Numbers] = {}
        self._rates: dict[Key, Numbers] = {}
        self._next_rates: dict[Key, Numbers] = {}
        self._per_s = 0.0

    def of(self, key: Key) -> Numbers:
        """The rates of a key; zeros if it did not grow."""
        return self._rates.get(key, self.nothing)

    def begin(self, elapsed_s: float) -> None:
        """A round begins, so long after the one before; 0: there was none, rates come later."""
        self._per_s = 1 / elapsed_s if elapsed_s > 0 else 0.0
        self._now, self._next_rates = {}, {}

    def add(self, key: Key, counters: Numbers) -> None:
        """The counters of one key in this round."""
        if counters == self.nothing:
            return
        self._now[key] = counters
        before = self._before.get(key)
        if counters == before or not self._per_s:
            return
        per_s = self._per_s
        if before is None or any(now < was for now, was in zip(counters, before, strict=True)):
            self._next_rates[key] = tuple(now * per_s for now in counters)
        else:
            self._next_rates[key] = tuple(
                (now - was) * per_s for now, was in zip(counters, before, strict=True)
            )

    def finish(self) -> None:
        """The round is over: its rates count from now on."""
        self._before, self._rates = self._now, self._next_rates
