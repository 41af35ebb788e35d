"""A message is found by its index, whatever lies between."""

import pytest

from magnetar.broker.base.errors import BrokerPersistenceError
from magnetar.broker.features.message_index import finding
from magnetar.broker.features.message_index.finding import find_index
from magnetar.ledger.position import Position
from tests.unit.broker.harness import entry
from tests.unit.broker.message_index.indexed_log import indexed, log_of


async def test_each_message_is_found_with_its_place_in_the_batch() -> None:
    log = log_of([indexed(0), indexed(3, messages=3)], [indexed(4), indexed(6, messages=2)])
    found = {index: await find_index(log, index) for index in range(7)}
    places = {
        index: (each.position, each.batch_index_of(index))
        for index, each in found.items()
        if each is not None
    }
    assert places == {
        0: (Position(7, 0), -1),
        1: (Position(7, 1), 0),
        2: (Position(7, 1), 1),
        3: (Position(7, 1), 2),
        4: (Position(8, 0), -1),
        5: (Position(8, 1), 0),
        6: (Position(8, 1), 1),
    }


async def test_an_index_that_is_not_there_yet_is_not_found() -> None:
    assert await find_index(log_of([indexed(0)]), 1) is None
    assert await find_index(log_of([]), 0) is None


async def test_of_what_was_trimmed_the_next_message_is_found() -> None:
    found = await find_index(log_of([indexed(12, messages=3)]), 5)
    assert found is not None
    assert (found.position, found.batch_index_of(5)) == (Position(7, 0), -1)


async def test_entries_without_an_index_are_passed_over() -> None:
    log = log_of(
        [entry()] * 40,
        [indexed(0), indexed(1)] + [entry()] * 700,
        [indexed(2, since=2), entry(), indexed(3, since=2)] + [entry()] * 9,
    )
    positions = [found.position for index in range(4) if (found := await find_index(log, index))]
    assert positions == [Position(8, 0), Position(8, 1), Position(9, 0), Position(9, 2)]
    assert await find_index(log, 4) is None


async def test_a_search_reads_few_entries() -> None:
    log = log_of([indexed(index) for index in range(1_000)])
    assert await find_index(log, 777) is not None
    assert len(log.reads) <= 11


async def test_a_search_ends_at_its_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(finding, "READS_MAX", 3)
    log = log_of([entry()] * 5_000)
    with pytest.raises(BrokerPersistenceError, match="have no index"):
        await find_index(log, 0)
