"""The pace of saves of all cursors of one broker: in turns, and less often the more are busy. Pure.

A save is one small entry, however many acknowledgements it covers. With a thousand busy
subscriptions, saving each of them every second costs the bookies as much as a fifth of the messages
at 5,000/s, and no client waits for it. So all cursors together save at a limited rate. Each waits
for its turn, but never longer than a limit.
"""


class SavePace:
    """Gives the cursors of one broker their turns."""

    def __init__(self, *, saves_per_s_max: float, delay_s_max: float) -> None:
        self._step_s = 1 / saves_per_s_max
        self._delay_s_max = delay_s_max
        self._next_s = 0.0
        """Time of the first free turn, in seconds of the monotonic clock."""

    def delay_s(self, now_s: float, interval_s: float) -> float:
        """Take the next turn; return the wait for the save, in seconds: for the turn, and then
        `interval_s`.

        So a cursor with a long interval delays no other. The wait exceeds `delay_s_max` only if the
        interval does. A cursor that would have to wait longer for its turn saves without one.
        """
        turn_wait_s_max = max(0.0, self._delay_s_max - interval_s)
        turn_s = max(now_s, self._next_s)
        if turn_s > now_s + turn_wait_s_max:
            return turn_wait_s_max + interval_s
        self._next_s = turn_s + self._step_s
        return turn_s - now_s + interval_s
