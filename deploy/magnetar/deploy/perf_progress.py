"""Prints the rate of each second of a running measurement. Pure: clock and output are injected."""

from collections.abc import Callable

PERIOD_S = 1.0


class PerfProgress:
    """Prints a line whenever a period has passed since the last one."""

    def __init__(self, *, write: Callable[[str], object], now_s: Callable[[], float]) -> None:
        """Make a progress line printer; `now_s` returns the monotonic time."""
        self._write = write
        self._now_s = now_s
        self._started_s = self._last_s = now_s()
        self._last_messages = 0

    def on_progress(self, messages: int) -> None:
        """Take the number of messages so far; called often."""
        now_s = self._now_s()
        passed_s = now_s - self._last_s
        if passed_s < PERIOD_S:
            return
        rate = (messages - self._last_messages) / passed_s
        self._write(f"{now_s - self._started_s:6.0f} s  {messages:>14,}  {rate:>12,.0f} msg/s\n")
        self._last_s, self._last_messages = now_s, messages
