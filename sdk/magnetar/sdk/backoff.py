"""Pauses between the attempts of a client. Pure: the caller sleeps.

Servers compute their pauses in `magnetar.ledger.backoff`, which the SDK does not import. They count
failures that outlive an attempt, and nothing makes all of them fail at the same moment.
"""

import random

_SHORTENED_SHARE = 0.2


class Backoff:
    """Pauses that double from `min_s` to `max_s`."""

    def __init__(self, *, min_s: float, max_s: float, random: random.Random | None = None) -> None:
        """Begin with a pause of `min_s`.

        `random` shortens each pause by up to a fifth, for clients that lose a broker at the same
        moment. None: pauses are exact, for one client that waits for its own earlier attempt.
        """
        self._min_s, self._max_s, self._random = min_s, max_s, random
        self._following_s = min_s

    @property
    def following_s(self) -> float:
        """The next pause before it is shortened."""
        return self._following_s

    @property
    def has_paused(self) -> bool:
        """Whether a pause was taken since the start or the last reset."""
        return self._following_s > self._min_s

    def next_s(self) -> float:
        """Return the pause to take now, in seconds; the next is twice as long, up to `max_s`."""
        pause_s = self._following_s
        self._following_s = min(self._max_s, 2 * pause_s)
        if self._random is None:
            return pause_s
        return pause_s * (1 - _SHORTENED_SHARE * self._random.random())

    def reset(self) -> None:
        """Return to the shortest pause, after a successful attempt."""
        self._following_s = self._min_s
