"""Work items of re-replication: ranges against plain sets, the JSON, and anything else refused."""

import json
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from magnetar.ledger.errors import InvalidLedgerMetadataError
from magnetar.ledger.under_replication import decode_item, encode_item, item_path, merge_ranges

ids = st.integers(0, (1 << 63) - 1)
near = st.integers(0, 60)
ranges = st.lists(
    st.tuples(near, near).map(lambda pair: (min(pair), max(pair))), min_size=1, max_size=12
)


def entries(some: list[tuple[int, int]]) -> set[int]:
    return {entry_id for first, last in some for entry_id in range(first, last + 1)}


@given(ranges)
def test_merged_ranges_hold_the_same_entries_in_as_few_ranges_as_can_be(
    some: list[tuple[int, int]],
) -> None:
    merged = merge_ranges(some, ranges_max=1000)
    assert entries(merged) == entries(some)
    assert all(after[0] > before[1] + 1 for before, after in pairwise(merged))


@given(ranges, st.integers(1, 4))
def test_too_many_ranges_hide_no_entry(some: list[tuple[int, int]], ranges_max: int) -> None:
    merged = merge_ranges(some, ranges_max=ranges_max)
    assert len(merged) <= ranges_max
    assert entries(merged) >= entries(some)


missing = st.dictionaries(
    st.text("abc019.-:", min_size=1, max_size=8),
    st.lists(st.tuples(ids, ids).map(lambda pair: (min(pair), max(pair))), min_size=1, max_size=3),
    max_size=3,
)


@given(ids, missing, ids)
def test_items_round_trip(
    ledger_id: int, some: dict[str, list[tuple[int, int]]], since_ms: int
) -> None:
    value = encode_item(ledger_id, some, since_ms)
    assert decode_item(value, path="/x") == (some, since_ms)


@given(ids, ids)
def test_every_ledger_has_a_path_of_its_own(one: int, other: int) -> None:
    assert (item_path("/r", one) == item_path("/r", other)) is (one == other)


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 1 << 70) | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=4), inner),
    max_leaves=4,
)


def is_refused(value: bytes) -> bool:
    try:
        decode_item(value, path="/x")
    except InvalidLedgerMetadataError as error:
        return str(error).startswith("/x")
    return False


@given(st.binary(max_size=200))
def test_arbitrary_bytes_are_refused(value: bytes) -> None:
    assert is_refused(value)


def test_bottomless_nesting_is_refused() -> None:
    assert is_refused(b"[" * 100_000)


@given(ids, missing, ids, st.data())
def test_a_changed_field_is_read_as_it_is_or_refused(
    ledger_id: int,
    some: dict[str, list[tuple[int, int]]],
    since_ms: int,
    data: st.DataObject,
) -> None:
    """What is taken for something else would be merged, and written back changed."""
    fields = json.loads(encode_item(ledger_id, some, since_ms))
    name = data.draw(st.sampled_from(["format", "missing", "since_ms", "surprise"]))
    fields[name] = data.draw(JSON_VALUES)
    value = json.dumps(fields).encode()
    if not is_refused(value):
        found, since = decode_item(value, path="/x")
        again = json.loads(encode_item(ledger_id, found, since))
        assert json.dumps(again, sort_keys=True) == json.dumps(fields, sort_keys=True)
