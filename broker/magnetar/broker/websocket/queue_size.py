"""How many messages brokers may send ahead for a session, so that they hold few bytes here. Pure.

Credit counts messages, and nobody knows how large those are that come: a thousand of five megabytes
would wait here for a client that reads nothing. So a consumer begins with a few, and has twice as
many each time it has taken so many, as long as their size says that they fit.
"""

from typing import Final

FIRST: Final = 8
"""Messages sent ahead before their size is known."""
_DECAY: Final = 8
"""A large message is remembered for some takes: the mean falls by an eighth of itself at most."""


class QueueSize:
    """Of one consumer."""

    def __init__(self, *, messages_max: int, bytes_max: int, first: int = FIRST) -> None:
        assert messages_max >= 1
        self.messages = max(1, min(messages_max, first))
        """How many may be sent ahead now."""
        self._messages_max = messages_max
        self._bytes_max = bytes_max
        self._mean_bytes = 1
        self._taken = 0

    def took(self, messages: int, size: int) -> bool:
        """So many were taken, of `size` bytes together; whether `messages` is another now."""
        mean = max(1, size // max(1, messages))
        self._mean_bytes = max(mean, self._mean_bytes - self._mean_bytes // _DECAY)
        fitting = max(1, min(self._messages_max, self._bytes_max // self._mean_bytes))
        self._taken += messages
        before = self.messages
        if fitting < before:
            self.messages = fitting
        elif self._taken >= before:
            self.messages = min(fitting, 2 * before)
        else:
            return False
        self._taken = 0
        return self.messages != before
