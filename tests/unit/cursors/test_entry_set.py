"""The bitmap of entry ids."""

import pytest

from magnetar.cursors.entry_set import CHUNK_ENTRIES, EntrySet

BORDERS = [0, 1, CHUNK_ENTRIES - 1, CHUNK_ENTRIES, CHUNK_ENTRIES + 1, 3 * CHUNK_ENTRIES]


@pytest.mark.parametrize("entry_id", BORDERS)
def test_an_entry_is_in_the_set_once_it_was_added(entry_id: int) -> None:
    entries = EntrySet()
    assert entry_id not in entries
    assert entries.add(entry_id)
    assert not entries.add(entry_id)
    assert entry_id in entries
    assert entries.count == 1
    assert list(entries.runs()) == [(entry_id, entry_id)]


def test_a_range_across_chunks_is_one_run() -> None:
    entries = EntrySet()
    assert entries.add_range(10, 3 * CHUNK_ENTRIES + 10) == 3 * CHUNK_ENTRIES + 1
    assert list(entries.runs()) == [(10, 3 * CHUNK_ENTRIES + 10)]
    assert entries.run_count() == 1
    assert entries.first_absent(10) == 3 * CHUNK_ENTRIES + 11
    assert entries.first_absent(9) == 9


@pytest.mark.parametrize("last", BORDERS)
def test_the_gap_after_a_run_is_found_at_every_chunk_border(last: int) -> None:
    entries = EntrySet()
    entries.add_range(0, last)
    assert entries.first_absent(0) == last + 1
    assert entries.first_absent(last) == last + 1
    assert entries.first_absent(last + 1) == last + 1


def test_discarding_removes_only_the_range() -> None:
    entries = EntrySet()
    entries.add_range(0, 4 * CHUNK_ENTRIES)
    assert entries.discard_range(5, 2 * CHUNK_ENTRIES) == 2 * CHUNK_ENTRIES - 4
    assert list(entries.runs()) == [(0, 4), (2 * CHUNK_ENTRIES + 1, 4 * CHUNK_ENTRIES)]
    assert entries.discard_range(0, 1 << 60) == entries.count + 5 + 2 * CHUNK_ENTRIES
    assert entries.count == 0
    assert list(entries.runs()) == []


def test_every_second_entry_makes_as_many_runs() -> None:
    entries = EntrySet()
    for entry_id in range(0, 4 * CHUNK_ENTRIES, 2):
        entries.add(entry_id)
    assert entries.run_count() == 2 * CHUNK_ENTRIES
    assert list(entries.runs()) == [(entry, entry) for entry in range(0, 4 * CHUNK_ENTRIES, 2)]
