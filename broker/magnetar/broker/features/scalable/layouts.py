"""The layouts that are followed on this broker: each is followed once, for all its listeners.

Layouts come from *sources*, in the order of their precedence; the first source that knows a topic
decides. Records of scalable topics come first, then the partitions of topics, which know every
topic (`record_layouts.py` has both).

A listener learns only that something may have changed, and reads `known` itself. So a busy listener
misses nothing, and one that is called twice finds nothing new.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from typing import Protocol

from magnetar.broker.features.scalable.layout import Layout
from magnetar.ledger.ports import Clock
from magnetar.sdk.wire import TopicName

Listener = Callable[[], None]

_TURN_S_MAX = 0.005
"""Longest time for listeners, in seconds, before other tasks get a turn: one topic may have
thousands."""


class FollowedSource(Protocol):
    """The layout of one topic, from one source."""

    async def get(self) -> Layout | None:
        """Return the current layout; None if the source does not know the topic.

        Raises:
            BrokerMetadataError: the layout cannot be read now.
        """
        ...

    async def reread(self) -> Layout | None:
        """Return the layout, with the holds that were stored before this call.

        Raises:
            BrokerMetadataError: the layout cannot be read now.
        """
        ...

    @property
    def known(self) -> Layout | None:
        """The layout as last read."""
        ...

    def close(self) -> None:
        """Stop following the layout."""
        ...


class LayoutSource(Protocol):
    """A source of the layouts of some topics."""

    def follow(self, topic: TopicName, on_change: Callable[[], None]) -> FollowedSource:
        """Follow the layout of a topic, by its `persistent://` name."""
        ...


class FollowedLayout:
    """The layout of one topic, with the listeners that follow it."""

    def __init__(self, topic: TopicName, sources: Sequence[LayoutSource], clock: Clock) -> None:
        self._clock = clock
        self._sources = [source.follow(topic, self._changed) for source in sources]
        self.listeners: dict[Listener, None] = {}
        self._untold: deque[Listener] = deque()

    async def get(self) -> Layout | None:
        """Return the current layout; None if there is no such topic.

        Raises:
            BrokerMetadataError
        """
        for source in self._sources:
            found = await source.get()
            if found is not None:
                return found
        return None

    async def reread(self) -> Layout | None:
        """Return the layout, with the holds stored before this call, whether reported or not; None
        if there is no such topic.

        Raises:
            BrokerMetadataError
        """
        for source in self._sources:
            found = await source.reread()
            if found is not None:
                return found
        return None

    @property
    def known(self) -> Layout | None:
        """The layout as last read; None if there is no such topic, or `get` was not called."""
        return next((known for each in self._sources if (known := each.known) is not None), None)

    def _changed(self) -> None:
        is_telling = bool(self._untold)
        self._untold = deque(self.listeners)
        if not is_telling:
            self._tell()

    def _tell(self) -> None:
        """Call some of the listeners, and the others in further turns of the loop."""
        until_s = self._clock.monotonic_s() + _TURN_S_MAX
        try:
            while self._untold:
                listener = self._untold.popleft()
                if listener in self.listeners:
                    listener()
                if self._clock.monotonic_s() >= until_s:
                    break
        finally:
            if self._untold:
                asyncio.get_running_loop().call_soon(self._tell)

    def close(self) -> None:
        """Stop following the layout."""
        self._untold.clear()
        for source in self._sources:
            source.close()


class Layouts:
    """All layouts that are followed on this broker."""

    def __init__(self, sources: Sequence[LayoutSource], clock: Clock) -> None:
        """`sources` are in order of precedence: the first one that knows a topic decides."""
        self._sources = tuple(sources)
        self._clock = clock
        self._layouts: dict[TopicName, FollowedLayout] = {}

    def join(self, topic: TopicName, listener: Listener) -> FollowedLayout:
        """Call a listener at each change from now on."""
        followed = self._layouts.get(topic)
        if followed is None:
            followed = FollowedLayout(topic, self._sources, self._clock)
            self._layouts[topic] = followed
        followed.listeners[listener] = None
        return followed

    def leave(self, topic: TopicName, listener: Listener) -> None:
        """Remove a listener; stop following a layout that has none left."""
        followed = self._layouts[topic]
        del followed.listeners[listener]
        if not followed.listeners:
            del self._layouts[topic]
            followed.close()

    def __len__(self) -> int:
        """Return the number of topics whose layouts are followed."""
        return len(self._layouts)
