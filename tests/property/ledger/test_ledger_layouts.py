"""Where ledgers lie: every id has one path, and a listing has every id, in order, without gaps.

An incomplete listing makes a garbage collector delete live data (rule 3.2).
"""

import asyncio
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from magnetar.ledger.errors import LedgerIdsExhaustedError, NoSuchLedgerError
from magnetar.ledger.layouts.ledger_ids import LEDGER_ID_LIMIT, parse_generated_id
from magnetar.ledger.layouts.ledger_layout import LedgerLayout
from magnetar.ledger.layouts.ledger_layout_flat import FlatLayout
from magnetar.ledger.layouts.ledger_layout_hierarchical import HierarchicalLayout
from magnetar.ledger.ledger_metadata import LEDGER_ID_MAX
from tests.dictionary_store import DictionaryStore

Make = Callable[[DictionaryStore], LedgerLayout]

ROOT = "/ledgers"
short_ids = st.integers(0, 30_000) | st.integers(0, LEDGER_ID_LIMIT - 1)
long_ids = st.integers(LEDGER_ID_LIMIT, LEDGER_ID_MAX) | st.integers(1 << 32, (1 << 32) + 20_000)
strangers = st.sampled_from(
    ["available/b1", "cookies/b1", "idgen", "idgen-long/HOB-0000000001", "LAYOUT", "INSTANCEID",
     "underreplication/ledgers/0000", "00", "00/0000", "17/0042", "000/0000/0000/0000", "922"]
)  # fmt: skip


def flat(store: DictionaryStore) -> LedgerLayout:
    return FlatLayout(store, ROOT)


def hierarchical(store: DictionaryStore) -> LedgerLayout:
    return HierarchicalLayout(store, ROOT, is_long=False)


layouts = pytest.mark.parametrize(
    ("make", "ids"), [(flat, short_ids), (hierarchical, short_ids | long_ids)]
)


@layouts
@given(data=st.data())
def test_a_listing_has_every_ledger_in_order_and_covers_every_id(
    make: Make, ids: st.SearchStrategy[int], data: st.DataObject
) -> None:
    store = DictionaryStore()
    layout = make(store)
    expected = data.draw(st.sets(ids, max_size=12))
    for name in data.draw(st.lists(strangers, max_size=4)):
        store.nodes[f"{ROOT}/{name}"] = b""
    for ledger_id in expected:
        store.nodes[layout.path(ledger_id)] = b""
    store.nodes[f"{ROOT}/LAYOUT"] = b""

    async def listed() -> list[int]:
        found: list[int] = []
        next_id = 0
        async for each in layout.ranges():
            assert each.first_id == next_id
            assert all(each.first_id <= ledger_id <= each.last_id for ledger_id in each.ledger_ids)
            next_id = each.last_id + 1
            found += each.ledger_ids
        assert next_id == LEDGER_ID_MAX + 1
        return found

    assert asyncio.run(listed()) == sorted(expected)


@layouts
@given(data=st.data())
def test_two_ledgers_never_share_a_path_and_each_lies_where_the_layout_looks(
    make: Make, ids: st.SearchStrategy[int], data: st.DataObject
) -> None:
    layout = make(DictionaryStore())
    one, other = data.draw(ids), data.draw(ids)
    assert (layout.path(one) == layout.path(other)) is (one == other)
    assert layout.keeps(layout.path(one).removeprefix(f"{ROOT}/").partition("/")[0])


@layouts
@given(data=st.data())
def test_no_path_is_made_for_what_is_no_id(
    make: Make, ids: st.SearchStrategy[int], data: st.DataObject
) -> None:
    ledger_id = data.draw(st.integers(max_value=-1) | st.integers(min_value=LEDGER_ID_MAX + 1))
    with pytest.raises(NoSuchLedgerError):
        make(DictionaryStore()).path(ledger_id)


@given(st.integers(0, 10**10 - 1))
def test_a_counter_of_the_store_is_an_id_or_the_end(counter: int) -> None:
    path = f"/ledgers/idgen/ID-{counter:010d}"
    if counter < LEDGER_ID_LIMIT:
        assert parse_generated_id(path) == counter
    else:
        with pytest.raises(LedgerIdsExhaustedError):
            parse_generated_id(path)


@given(st.text(st.characters(codec="ascii"), max_size=14))
def test_any_other_name_is_no_counter(text: str) -> None:
    try:
        number = parse_generated_id(f"/ledgers/idgen/ID-{text}")
    except LedgerIdsExhaustedError:
        return
    assert text.endswith(f"{number:010d}")
