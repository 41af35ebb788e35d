"""The cores of garbage collection against simple models, and its codec against arbitrary bytes."""

from dataclasses import replace

from hypothesis import assume, given
from hypothesis import strategies as st
from pyroaring import BitMap64

from magnetar.bookie.entry_logs.entry_log import RunLocation
from magnetar.bookie.errors import ImplausibleListingError, StorageCorruptError
from magnetar.bookie.gc.compaction_plan import LogUse, group_logs
from magnetar.bookie.gc.compaction_record import (
    CompactionRecord,
    decode_record,
    encode_move,
    encode_record,
)
from magnetar.bookie.gc.dead_ledgers import DeadLedgerSearch
from magnetar.bookie.gc.log_usage import usage_of
from magnetar.bookie.indexes.location_index import RunMove
from magnetar.ledger.layouts.ledger_layout import LedgerRange
from magnetar.ledger.ledger_metadata import LEDGER_ID_MAX

LEDGERS = st.sets(st.integers(0, 60))
U32 = st.integers(0, (1 << 32) - 1)
I64 = st.integers(0, LEDGER_ID_MAX)


def ranges_of(listed: set[int], bounds: set[int]) -> list[LedgerRange]:
    firsts = [0, *sorted(bounds - {0})]
    lasts = [*[first - 1 for first in firsts[1:]], LEDGER_ID_MAX]
    return [
        LedgerRange(first, last, tuple(sorted(each for each in listed if first <= each <= last)))
        for first, last in zip(firsts, lasts, strict=True)
    ]


@given(LEDGERS, LEDGERS, LEDGERS)
def test_candidates_are_the_local_ledgers_without_metadata(
    local: set[int], listed: set[int], bounds: set[int]
) -> None:
    search = DeadLedgerSearch(BitMap64(local))
    for found in ranges_of(listed, bounds):
        search.on_range(found)
    assert search.candidates(None) == sorted(local - listed)


@given(LEDGERS, LEDGERS, LEDGERS, st.data())
def test_a_listing_that_lacks_or_swaps_ranges_is_refused(
    local: set[int], listed: set[int], bounds: set[int], data: st.DataObject
) -> None:
    listing = ranges_of(listed, bounds)
    told = data.draw(st.lists(st.sampled_from(listing), max_size=len(listing)))
    assume(told != listing)
    search = DeadLedgerSearch(BitMap64(local))
    try:
        for found in told:
            search.on_range(found)
        search.candidates(None)
    except ImplausibleListingError:
        return
    raise AssertionError("believed")


@given(st.dictionaries(st.integers(0, 20_000), st.integers(1, 99)), st.sets(st.integers(0, 20_000)))
def test_usage_counts_as_a_dictionary_does(sizes: dict[int, int], alive: set[int]) -> None:
    live = usage_of(1, sizes, file_bytes=1, is_certain=True).live(BitMap64(alive))
    assert live == (len(sizes.keys() & alive), sum(sizes[each] for each in sizes.keys() & alive))


@given(st.lists(st.integers(0, 200)))
def test_groups_keep_the_order_and_fit(sizes: list[int]) -> None:
    logs = [LogUse(at, 200, size) for at, size in enumerate(sizes)]
    groups = group_logs(logs, log_bytes_max=100)
    assert [each for group in groups for each in group] == logs
    assert all(len(group) == 1 or sum(each.live_bytes for each in group) <= 100 for group in groups)


locations = st.builds(RunLocation, U32, I64, U32, U32, st.booleans())
targets = st.builds(RunLocation, st.just(9), I64, U32, U32, st.booleans())
moves = st.builds(RunMove, I64, I64, I64, locations, st.none() | targets)


@given(st.lists(U32, max_size=16), st.lists(moves, max_size=20), st.integers(1, 7))
def test_a_record_comes_back_as_it_was(
    replaced: list[int], moved: list[RunMove], moves_max: int
) -> None:
    record = CompactionRecord(9, tuple(replaced), b"".join(map(encode_move, moved)))
    found = decode_record(encode_record(record), log_id=9)
    assert replace(found, moves=bytes(found.moves)) == record
    batches = list(found.batches(moves_max))
    assert [move for batch in batches for move in batch] == moved
    assert all(len(batch) <= moves_max for batch in batches)


@given(st.lists(moves, max_size=3), st.data())
def test_a_changed_record_is_refused(moved: list[RunMove], data: st.DataObject) -> None:
    encoded = bytearray(
        encode_record(CompactionRecord(9, (1, 2), b"".join(map(encode_move, moved))))
    )
    at = data.draw(st.integers(0, len(encoded) - 1))
    encoded[at] ^= data.draw(st.integers(1, 255))
    _refused(bytes(encoded))
    _refused(bytes(encoded[:at]))


@given(st.binary(max_size=200))
def test_arbitrary_bytes_are_no_record(data: bytes) -> None:
    _refused(data)


def _refused(data: bytes) -> None:
    try:
        decode_record(data, log_id=9)
    except StorageCorruptError:
        return
    raise AssertionError("taken for a record")
