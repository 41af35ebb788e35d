"""What is stored of a topic that is not loaded, without loading it."""

import pytest

from magnetar.broker.base import naming
from magnetar.broker.http.summed_stats import summed_at_rest
from magnetar.broker.topics.at_rest.stored import (
    SUBSCRIPTIONS_MAX,
    entries_behind,
    resting_backlogs,
)
from magnetar.cursors.node import CursorNode, cursor_path, encode_node
from magnetar.ledger.managed_log.log_metadata import LogLedger, LogMetadata
from magnetar.ledger.position import Position
from magnetar.sdk.wire import parse_topic_name
from tests.dictionary_store import DictionaryStore

NAME = parse_topic_name("persistent://public/default/resting")
LEDGERS = (
    LogLedger(1, entries=10, bytes=100, closed_ms=1),
    LogLedger(4, entries=5, bytes=50, closed_ms=2),
)


@pytest.mark.parametrize(
    ("place", "entries"),
    [
        (Position(-1, -1), 15),
        (Position(1, -1), 15),
        (Position(1, 3), 11),
        (Position(1, 9), 5),
        (Position(2, 7), 5),
        (Position(4, 4), 0),
        (Position(9, 0), 0),
    ],
)
def test_entries_are_counted_from_a_place_on(place: Position, entries: int) -> None:
    assert entries_behind(LEDGERS, place) == entries


async def test_sizes_and_backlogs_are_read_from_the_metadata_alone() -> None:
    store = DictionaryStore()
    assert await resting_backlogs(store, NAME) is None
    path = naming.log_path(NAME)
    await store.create(path, LogMetadata(ledgers=LEDGERS).to_json())
    await store.create(cursor_path(path, "s"), encode_node(CursorNode(epoch=1, mark_delete=(1, 3))))
    found = await resting_backlogs(store, NAME)
    assert found is not None
    shown = found.shown()
    assert shown["storageSize"] == 150
    assert shown["subscriptions"] == {
        "s": {"msgBacklog": 11, "backlogSize": 110, "isUpperBound": False}
    }
    for number in range(SUBSCRIPTIONS_MAX):
        node = encode_node(CursorNode(epoch=1, mark_delete=(4, 4)))
        await store.create(cursor_path(path, f"t{number:04d}"), node)
    found = await resting_backlogs(store, NAME)
    assert found is not None
    assert len(found.backlogs) == SUBSCRIPTIONS_MAX


def test_partitions_at_rest_are_added_up() -> None:
    one = {"msgBacklog": 1, "backlogSize": 10, "isUpperBound": False}
    other = {"msgBacklog": 2, "backlogSize": 20, "isUpperBound": True}
    parts = [
        {"storageSize": 5, "subscriptions": {"s": one}},
        {"storageSize": 6, "subscriptions": {"s": other, "t": one}},
    ]
    assert summed_at_rest(parts) == {
        "storageSize": 11,
        "subscriptions": {
            "s": {"msgBacklog": 3, "backlogSize": 30, "isUpperBound": True},
            "t": one,
        },
    }
