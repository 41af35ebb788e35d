"""The watch table: events from views, and nothing missed when a look fails."""

from collections.abc import Callable

import pytest

from magnetar.ledger.metadata.store import WatchEvent
from magnetar.ledger.metadata.watches import NodeView, WatchTable, events_between

A = NodeView(incarnation=1, version=0, children=0)


@pytest.mark.parametrize(
    ("before", "after", "events"),
    [
        (None, None, []),
        (A, A, []),
        (None, A, [WatchEvent.CREATED]),
        (A, None, [WatchEvent.DELETED]),
        (A, A._replace(version=1), [WatchEvent.CHANGED]),
        (A, A._replace(children=1), [WatchEvent.CHILDREN]),
        (A, NodeView(1, 3, 4), [WatchEvent.CHANGED, WatchEvent.CHILDREN]),
        (A, A._replace(incarnation=2), [WatchEvent.DELETED, WatchEvent.CREATED]),
    ],
)
def test_events_are_the_difference_of_two_views(
    before: NodeView | None, after: NodeView | None, events: list[WatchEvent]
) -> None:
    assert events_between(before, after) == events


class Table:
    """A watch table with a loop of one list."""

    def __init__(self) -> None:
        self.soon: list[Callable[[], None]] = []
        self.table = WatchTable(self.soon.append)
        self.seen: list[WatchEvent] = []
        self.watch = self.table.add("/a", self.seen.append)

    def run(self) -> list[WatchEvent]:
        while self.soon:
            self.soon.pop(0)()
        seen, self.seen[:] = list(self.seen), []
        return seen


def test_the_first_view_is_the_base_and_no_event() -> None:
    table = Table()
    table.table.on_view("/a", A)
    assert table.run() == []
    table.table.on_view("/a", A._replace(version=2))
    assert table.run() == [WatchEvent.CHANGED]


def test_after_a_failed_first_look_there_is_an_event_in_any_case() -> None:
    table = Table()
    table.table.on_look_failed("/a")
    table.table.on_view("/a", A)
    assert table.run() == [WatchEvent.CHANGED, WatchEvent.CHILDREN]
    table.table.on_view("/a", A)
    assert table.run() == []


def test_a_failed_later_look_keeps_the_base() -> None:
    table = Table()
    table.table.on_view("/a", A)
    table.table.on_look_failed("/a")
    table.table.on_view("/a", A)
    assert table.run() == []
    table.table.on_view("/a", None)
    assert table.run() == [WatchEvent.DELETED]


def test_an_event_on_its_way_does_not_reach_a_closed_watch() -> None:
    table = Table()
    table.table.on_view("/a", A)
    table.table.on_view("/a", None)
    table.watch.close()
    assert table.run() == []


def test_the_path_is_forgotten_with_its_last_watch() -> None:
    table = Table()
    other = table.table.add("/a", table.seen.append)
    table.watch.close()
    assert "/a" in table.table
    other.close()
    assert "/a" not in table.table
    table.table.on_view("/a", A)
    assert table.run() == []
