"""How many messages a consumer or reader may be sent, and which it has not answered. Pure.

*Push*: a window; a message that is sent takes a slot, and its acknowledgement, positive or
negative, frees it. A message that comes again takes no second one. *Pull*: permits; each message
costs one, and acknowledgements give nothing. *Reader*: a window whose slots any frame frees.

With an ack timeout, what was not answered in time is to be asked for again.
Source: WebSocket sheet, section 4.
"""

from collections.abc import Hashable, Iterable
from typing import Generic, TypeVar

_PERMITS_MAX = (1 << 63) - 1

Key = TypeVar("Key", bound=Hashable)
"""What identifies a message of a session."""


class Credit(Generic[Key]):
    """Of one session. Times are in seconds of any clock that does not go back."""

    def __init__(self, *, window: int, pull: bool, ack_timeout_s: float = 0.0) -> None:
        """In pull mode `window` bounds what an ack timeout is waited for."""
        assert window >= 1
        self._window = window
        self._pull = pull
        self._permits = 0
        self._ack_timeout_s = ack_timeout_s
        self._tracks = not pull or ack_timeout_s > 0
        # In the order of their times: every entry gets the same timeout.
        self._unanswered: dict[Key, float] = {}

    @property
    def unanswered(self) -> int:
        """Messages that take a slot, or whose time runs."""
        return len(self._unanswered)

    @property
    def room(self) -> int:
        """How many messages may be sent now."""
        room = self._window - len(self._unanswered) if self._tracks else self._permits
        return min(room, self._permits) if self._pull else room

    def sent(self, keys: Iterable[Key], now_s: float) -> None:
        """They were sent; not more of them than there was room for."""
        count = 0
        for key in keys:
            count += 1
            if self._tracks:
                self._unanswered.pop(key, None)
                self._unanswered[key] = now_s + self._ack_timeout_s
        if self._pull:
            self._permits -= count

    def permit(self, count: int) -> None:
        """The client allows more; without meaning outside of pull mode."""
        if self._pull:
            self._permits = min(_PERMITS_MAX, self._permits + count)

    def answered(self, key: Key) -> bool:
        """An acknowledgement of either kind; whether this session knew the message."""
        return self._unanswered.pop(key, None) is not None

    @property
    def next_timeout_s(self) -> float | None:
        """When the next message is to be asked for again."""
        if not self._ack_timeout_s or not self._unanswered:
            return None
        return next(iter(self._unanswered.values()))

    def take_expired(self, now_s: float) -> list[Key]:
        """The messages whose time is over; their slots are free."""
        expired: list[Key] = []
        for key, due_s in self._unanswered.items():
            if due_s > now_s:
                break
            expired.append(key)
        for key in expired:
            del self._unanswered[key]
        return expired


class ReaderWindow:
    """The slots of a reader: any frame frees one."""

    def __init__(self, window: int) -> None:
        assert window >= 1
        self._window = window
        self._taken = 0

    @property
    def room(self) -> int:
        return self._window - self._taken

    def sent(self, count: int) -> None:
        self._taken += count

    def free(self) -> None:
        """A frame came; there are never more slots than the window has."""
        self._taken = max(0, self._taken - 1)
