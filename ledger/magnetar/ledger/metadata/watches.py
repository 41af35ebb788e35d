"""Watches: the watchers of each path, and the changes between two looks at a node.

Both stores find out *that* something may have changed (ZooKeeper's one-shot watches, SQLite's
change counter, their own writes), look at the node, and pass the view in here. The events come from
comparing views, so a superfluous trigger does no harm, and one trigger for several changes loses
none. Does no I/O; the stores decide when to look.
"""

from collections.abc import Callable, KeysView
from functools import partial
from typing import NamedTuple

from magnetar.ledger.metadata.store import WatchCallback, WatchEvent


class NodeView(NamedTuple):
    """The numbers by which two states of one path differ."""

    incarnation: int
    """Changes when the node is deleted and created again."""
    version: int
    children: int
    """Changes when a child is created or deleted."""


def events_between(before: NodeView | None, after: NodeView | None) -> list[WatchEvent]:
    """Return the events that lead from one view to the other; None is an absent node."""
    if before == after:
        return []
    if before is None:
        return [WatchEvent.CREATED]
    if after is None:
        return [WatchEvent.DELETED]
    if before.incarnation != after.incarnation:
        return [WatchEvent.DELETED, WatchEvent.CREATED]
    events = []
    if before.version != after.version:
        events.append(WatchEvent.CHANGED)
    if before.children != after.children:
        events.append(WatchEvent.CHILDREN)
    return events


class _Watched:
    """One path: its watchers and the last view; `view` counts only once `is_known`."""

    __slots__ = ("is_known", "may_have_missed", "view", "watchers")

    def __init__(self) -> None:
        self.watchers: list[TableWatch] = []
        self.view: NodeView | None = None
        self.is_known = False
        self.may_have_missed = False


class TableWatch:
    """A watch of a `WatchTable`; a `Watch` of the store's interface."""

    __slots__ = ("_callback", "_is_closed", "_path", "_table")

    def __init__(self, table: "WatchTable", path: str, callback: WatchCallback) -> None:
        self._table = table
        self._path = path
        self._callback = callback
        self._is_closed = False

    def close(self) -> None:
        if not self._is_closed:
            self._is_closed = True
            self._table.remove(self._path, self)

    def deliver(self, event: WatchEvent) -> None:
        """Call back, unless the watch was closed since the event was found."""
        if not self._is_closed:
            self._callback(event)


class WatchTable:
    """All watches of one store handle.

    `deliver` gets a function to call soon, on the loop: a failing callback must not keep other
    callbacks from being called.
    """

    def __init__(self, deliver: Callable[[Callable[[], None]], object]) -> None:
        self._deliver = deliver
        self._by_path: dict[str, _Watched] = {}

    def __contains__(self, path: str) -> bool:
        return path in self._by_path

    def __len__(self) -> int:
        return len(self._by_path)

    @property
    def paths(self) -> KeysView[str]:
        return self._by_path.keys()

    def add(self, path: str, callback: WatchCallback) -> TableWatch:
        """Add a watch. If the path was not watched before, the first view becomes its base."""
        watch = TableWatch(self, path, callback)
        self._by_path.setdefault(path, _Watched()).watchers.append(watch)
        return watch

    def remove(self, path: str, watch: TableWatch) -> None:
        """Remove a watch, and the path with its last watch."""
        watched = self._by_path[path]
        watched.watchers.remove(watch)
        if not watched.watchers:
            del self._by_path[path]

    def clear(self) -> None:
        """Close all watches."""
        for watched in list(self._by_path.values()):
            for watch in list(watched.watchers):
                watch.close()

    def on_look_failed(self, path: str) -> None:
        """Note that a look at the node failed: changes before the next view are unknown."""
        if (watched := self._by_path.get(path)) is not None:
            watched.may_have_missed = True

    def on_view(self, path: str, view: NodeView | None) -> None:
        """Take a new view of the node and emit the events since the previous view."""
        watched = self._by_path.get(path)
        if watched is None:
            return
        if watched.is_known:
            events = events_between(watched.view, view)
        elif watched.may_have_missed:
            # The base is younger than the watch: a reader may have read before a change that the
            # base already holds. A superfluous event is the safe choice.
            events = [WatchEvent.DELETED if view is None else WatchEvent.CHANGED]
            if view is not None:
                events.append(WatchEvent.CHILDREN)
        else:
            events = []
        watched.is_known, watched.may_have_missed, watched.view = True, False, view
        for event in events:
            for watch in watched.watchers:
                self._deliver(partial(watch.deliver, event))
