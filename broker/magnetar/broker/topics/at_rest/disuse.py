"""Since when topics that are not loaded, and their subscriptions, are unused."""

from collections.abc import Mapping
from dataclasses import dataclass

from magnetar.sdk.wire import TopicName


@dataclass(frozen=True, slots=True)
class UnusedSince:
    """Since when a topic and its subscriptions are unused, monotonic seconds."""

    topic_s: float
    subscriptions_s: Mapping[str, float]
    """By subscription; one that is missing here is new."""

    def not_before(self, since_s: float) -> "UnusedSince":
        """Return this with every time moved to `since_s` that is earlier."""
        return UnusedSince(
            max(self.topic_s, since_s),
            {name: max(each, since_s) for name, each in self.subscriptions_s.items()},
        )


class Disuse:
    """When topics came to rest on this broker, as far as it can know; monotonic seconds.

    A topic that was never loaded here counts as unused since the broker began to look, or since a
    walk first saw it (`births.py`). For the others, the time at which each came to rest is
    remembered, up to a bound. If one is forgotten, all topics that are not remembered count from
    its time. So a topic never counts as unused for longer than it is.
    """

    def __init__(self, began_s: float, *, remembered_max: int) -> None:
        self._floor_s = began_s
        self._remembered_max = remembered_max
        self._since_s: dict[TopicName, float] = {}  # the oldest first

    def __len__(self) -> int:
        return len(self._since_s)

    def came_to_rest(self, name: TopicName, now_s: float) -> None:
        """Note that the topic was loaded and used until now."""
        self._since_s.pop(name, None)
        self._since_s[name] = now_s
        while len(self._since_s) > self._remembered_max:
            oldest = next(iter(self._since_s))
            self._floor_s = max(self._floor_s, self._since_s.pop(oldest))

    def forget(self, name: TopicName) -> None:
        """Forget a topic that was deleted, to free its place."""
        self._since_s.pop(name, None)

    def since_s(self, name: TopicName) -> float:
        """Return a time since which the topic is certainly unused here, if it existed then."""
        return self._since_s.get(name, self._floor_s)
