"""Use of a topic since it was loaded, and what trimming took away from it. In memory alone."""

import asyncio

from magnetar.broker.topic.surroundings import OldestEntry


class TopicUse:
    """The use of one topic."""

    def __init__(self, loaded_s: float) -> None:
        self.loaded_s = loaded_s
        """When the topic was loaded, monotonic."""
        self.is_asked_for = False
        """Somebody but the broker itself has asked for it since it was loaded."""
        self.joined = 0
        """How often a producer or consumer was let in: whoever looks now and then sees by it that
        somebody was here meanwhile."""
        self.oldest_seen: OldestEntry | None = None
        """The oldest entry of its backlogs when statistics were last asked for."""
        self.trimmed_ledgers = 0
        self.evicted_entries = 0
        """Entries that left a backlog because it was above its quota."""
        self._read_until_s = 0.0

    def hold_for_reading(self, hold_s: float) -> None:
        """Count as used for so long: somebody reads what is stored without connecting, as queries
        do that go straight to the bookies. A topic that moves forgets it."""
        until_s = asyncio.get_running_loop().time() + hold_s
        self._read_until_s = max(self._read_until_s, until_s)

    @property
    def is_held_for_reading(self) -> bool:
        """Whether somebody reads it without connecting."""
        return asyncio.get_running_loop().time() < self._read_until_s
