"""Use of a topic since it was loaded, and what trimming removed from it. Kept only in memory."""

import asyncio

from magnetar.broker.topic.surroundings import OldestEntry


class TopicUse:
    """The use of one topic."""

    def __init__(self, loaded_s: float) -> None:
        self.loaded_s = loaded_s
        """When the topic was loaded, monotonic seconds."""
        self.is_asked_for = False
        """Whether anyone but the broker itself has requested the topic since it was loaded."""
        self.joined = 0
        """Producers and consumers admitted so far. A periodic check sees by it whether the topic
        was used in between."""
        self.oldest_seen: OldestEntry | None = None
        """Oldest entry of its backlogs when statistics were last requested."""
        self.trimmed_ledgers = 0
        self.evicted_entries = 0
        """Entries removed from a backlog that was above its quota."""
        self._read_until_s = 0.0

    def hold_for_reading(self, hold_s: float) -> None:
        """Count the topic as used for `hold_s` seconds, for a reader that does not connect.

        Queries, for example, read straight from the bookies. A topic that moves loses this.
        """
        until_s = asyncio.get_running_loop().time() + hold_s
        self._read_until_s = max(self._read_until_s, until_s)

    @property
    def is_held_for_reading(self) -> bool:
        """Whether a reader that does not connect has announced itself."""
        return asyncio.get_running_loop().time() < self._read_until_s
