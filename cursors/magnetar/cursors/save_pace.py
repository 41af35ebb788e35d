"""When the cursors of one broker save: in turns, and less often the more of them are busy. Pure.

A save is one small entry, whatever was acknowledged since the one before it. With a thousand busy
subscriptions, a save of each every second is as much work for the bookies as a fifth of the
messages at 5,000/s, and nobody waits for it. So all of them together save so many times a second at
most; each waits for its turn, but never longer than a bound.
"""


class SavePace:
    """Gives the cursors of one broker their turns."""

    def __init__(self, *, saves_per_s_max: float, delay_s_max: float) -> None:
        self._step_s = 1 / saves_per_s_max
        self._delay_s_max = delay_s_max
        self._next_s = 0.0
        """The first turn that nobody has."""

    def delay_s(self, now_s: float, interval_s: float) -> float:
        """Take the next turn that is at least an interval away; return the wait for it.

        It is above `delay_s_max` only if the interval is.
        """
        longest_s = max(interval_s, self._delay_s_max)
        at_s = min(max(now_s + interval_s, self._next_s), now_s + longest_s)
        self._next_s = at_s + self._step_s
        return at_s - now_s
