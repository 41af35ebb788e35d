"""Where the index of a log goes on, whatever its last entries and its node say."""

import pytest

from magnetar.broker.features.message_index import index_end
from magnetar.broker.features.message_index.index_end import IndexEnd, find_end
from magnetar.broker.features.message_index.index_record import IndexRecord
from magnetar.ledger.errors import LogUnavailableError
from magnetar.sdk.wire import MESSAGES_PER_ENTRY_MAX
from tests.unit.broker.harness import entry
from tests.unit.broker.message_index.indexed_log import indexed, log_of


async def test_an_empty_log_begins_at_zero() -> None:
    assert await find_end(log_of([]), None) == IndexEnd(0, 0)


async def test_the_last_entry_says_where_the_index_goes_on() -> None:
    log = log_of([indexed(0), indexed(3, messages=3)], [])
    assert await find_end(log, IndexRecord(0, True)) == IndexEnd(4, 0)
    assert len(log.reads) == 1


async def test_a_stretch_goes_on_with_the_next_owner() -> None:
    log = log_of([indexed(50, since=44)])
    assert await find_end(log, IndexRecord(0, True)) == IndexEnd(51, 44)


async def test_a_log_that_was_trimmed_to_its_end_goes_on_where_its_node_says() -> None:
    assert await find_end(log_of([]), IndexRecord(900, True)) == IndexEnd(900, 900)


async def test_after_entries_without_an_index_a_new_stretch_begins() -> None:
    log = log_of([indexed(9), entry(), entry()])
    assert await find_end(log, IndexRecord(10, False)) == IndexEnd(10, 10)


async def test_a_log_that_never_had_an_index_is_not_searched_for_one() -> None:
    log = log_of([entry()] * 100)
    assert await find_end(log, None) == IndexEnd(0, 0)
    assert len(log.reads) == 1


async def test_the_node_is_a_lower_bound() -> None:
    """Indexes of appends that failed were given, though no entry has them."""
    log = log_of([indexed(9)])
    assert await find_end(log, IndexRecord(15, True)) == IndexEnd(15, 15)


async def test_entries_of_an_older_release_are_looked_through_for_the_last_index() -> None:
    log = log_of([indexed(9)], [entry()] * 600, [entry()] * 3)
    assert await find_end(log, IndexRecord(0, True)) == IndexEnd(10, 10)


async def test_beyond_the_bound_the_index_leaps_over_all_that_may_have_been_given(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(index_end, "LOOK_BACK_ENTRIES_MAX", 10)
    log = log_of([indexed(9)] + [entry()] * 2_000)
    leap = 2_001 * MESSAGES_PER_ENTRY_MAX
    assert await find_end(log, IndexRecord(3, True)) == IndexEnd(3 + leap, 3 + leap)


async def test_an_entry_of_the_brokers_own_before_the_first_message_begins_at_zero() -> None:
    assert await find_end(log_of([indexed(-1)]), IndexRecord(0, True)) == IndexEnd(0, 0)


async def test_nothing_is_guessed_while_the_last_entry_cannot_be_read() -> None:
    log = log_of([indexed(9)])
    log.read_error = LogUnavailableError("bookies are away")
    with pytest.raises(LogUnavailableError):
        await find_end(log, IndexRecord(0, True))
