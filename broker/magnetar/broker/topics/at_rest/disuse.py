"""Since when topics that are not loaded have been out of use, as far as this broker can know. Pure.

A topic that was never loaded here is out of use since the broker began to look. Of those that were,
the time at which each came to rest is remembered, up to a bound: where one is forgotten, all that
are not remembered count from its time. So a topic is never taken for longer unused than it is.
"""

from magnetar.sdk.wire import TopicName


class Disuse:
    """When topics came to rest here; monotonic seconds."""

    def __init__(self, began_s: float, *, remembered_max: int) -> None:
        self._floor_s = began_s
        self._remembered_max = remembered_max
        self._since_s: dict[TopicName, float] = {}  # the oldest first

    def __len__(self) -> int:
        return len(self._since_s)

    def came_to_rest(self, name: TopicName, now_s: float) -> None:
        """Somebody had the topic loaded until now."""
        self._since_s.pop(name, None)
        self._since_s[name] = now_s
        while len(self._since_s) > self._remembered_max:
            oldest = next(iter(self._since_s))
            self._floor_s = max(self._floor_s, self._since_s.pop(oldest))

    def since_s(self, name: TopicName) -> float:
        """Since when nobody has used the topic here, at the latest."""
        return self._since_s.get(name, self._floor_s)
