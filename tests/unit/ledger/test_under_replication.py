"""What is missing: ranges, their bound, and the work item in the metadata store."""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from structlog.testing import capture_logs

from magnetar.ledger.errors import InvalidLedgerMetadataError
from magnetar.ledger.metadata.store import MetadataStore
from magnetar.ledger.metadata.url import open_store
from magnetar.ledger.system import SystemClock
from magnetar.ledger.under_replication import (
    ENTRY_ID_MAX,
    EVERYTHING,
    Missing,
    RepairQueue,
    decode_item,
    encode_item,
    item_path,
    merge_ranges,
    publish_item,
)

RANGES = st.lists(
    st.tuples(st.integers(0, 60), st.integers(0, 8)).map(lambda each: (each[0], sum(each))),
    min_size=1,
)


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[MetadataStore]:
    store = await open_store(f"embedded:{tmp_path / 'metadata.db'}")
    yield store
    await store.close()


def queue_of(store: MetadataStore, *, ranges_max: int = 10) -> RepairQueue:
    return RepairQueue(store, clock=SystemClock(), publish_delay_s=0.0, ranges_max=ranges_max)


@given(ranges=RANGES)
def test_merging_keeps_exactly_the_same_entries(ranges: list[tuple[int, int]]) -> None:
    merged = merge_ranges(ranges, ranges_max=1000)
    assert {entry for first, last in merged for entry in range(first, last + 1)} == {
        entry for first, last in ranges for entry in range(first, last + 1)
    }
    assert all(merged[at][1] + 1 < merged[at + 1][0] for at in range(len(merged) - 1))


@given(ranges=RANGES, ranges_max=st.integers(1, 4))
def test_too_many_ranges_become_one_that_hides_nothing(
    ranges: list[tuple[int, int]], ranges_max: int
) -> None:
    merged = merge_ranges(ranges, ranges_max=ranges_max)
    assert len(merged) <= ranges_max
    assert all(any(low <= first and last <= high for low, high in merged) for first, last in ranges)


async def test_holes_of_several_clients_end_in_one_work_item(store: MetadataStore) -> None:
    for first, bookie_id in ((0, "b1"), (5, "b2"), (1, "b1")):
        queue = queue_of(store)
        queue.note(7, first, first, bookie_id, "test")
        await queue.close(timeout_s=5)
    path = item_path("/ledgers", 7)
    assert path == "/ledgers/underreplication/ledgers/0000/0000/0000/0007/urL7"
    missing, _ = decode_item((await store.get(path)).value, path=path)
    assert missing == {"b1": [(0, 1)], "b2": [(5, 5)]}


@pytest.mark.parametrize("is_lost_first", [True, False])
async def test_an_item_still_names_the_entries_that_were_noted_of_a_lost_bookie(
    store: MetadataStore, is_lost_first: bool
) -> None:
    notes: list[Missing] = [{"b1": [EVERYTHING]}, {"b1": [(7, 7)]}, {"b1": [(2, 3), (4, 5)]}]
    for missing in notes if is_lost_first else reversed(notes):
        await publish_item(store, 7, missing, root="/ledgers", now_ms=1, ranges_max=10)
    path = item_path("/ledgers", 7)
    missing, _ = decode_item((await store.get(path)).value, path=path)
    assert missing == {"b1": [(2, 5), (7, 7), EVERYTHING]}


@pytest.mark.parametrize("first", [0, 5])
async def test_a_note_without_an_end_does_not_say_that_the_bookie_is_lost(
    store: MetadataStore, first: int
) -> None:
    queue = queue_of(store)
    queue.note(7, first, ENTRY_ID_MAX, "b1", "its index is damaged")
    queue.note(7, 0, 4, "b1", "test")
    await queue.close(timeout_s=5)
    path = item_path("/ledgers", 7)
    missing, _ = decode_item((await store.get(path)).value, path=path)
    assert missing == {"b1": [(0, ENTRY_ID_MAX - 1)]}


async def test_an_item_that_cannot_be_read_stops_neither_the_others_nor_the_end(
    store: MetadataStore,
) -> None:
    await store.create(item_path("/ledgers", 7), b"not ours")
    queue = queue_of(store)
    queue.note(7, 0, 0, "b1", "test")
    queue.note(8, 0, 0, "b1", "test")
    async with asyncio.timeout(5):
        await queue.close(timeout_s=60)
    assert (await store.get(item_path("/ledgers", 7))).value == b"not ours"
    assert (await store.get(item_path("/ledgers", 8))).version == 0


async def test_what_is_known_already_is_not_written_again(store: MetadataStore) -> None:
    for _ in range(2):
        queue = queue_of(store)
        queue.note(7, 0, 9, "b1", "test")
        await queue.close(timeout_s=5)
    assert (await store.get(item_path("/ledgers", 7))).version == 0


@pytest.mark.parametrize(
    "value", [b"", b"{}", b"[]", json.dumps({"format": 2, "missing": {}, "since_ms": 0}).encode()]
)
def test_an_item_that_is_not_ours_is_refused(value: bytes) -> None:
    with pytest.raises(InvalidLedgerMetadataError, match="/there"):
        decode_item(value, path="/there")


def test_an_item_survives_its_codec() -> None:
    value = encode_item(3, {"b": [(0, 1), (5, 9)]}, 17)
    assert decode_item(value, path="/there") == ({"b": [(0, 1), (5, 9)]}, 17)


async def test_publishing_goes_on_after_a_bug(store: MetadataStore) -> None:
    queue = queue_of(store)
    publish = queue._publish
    broke = asyncio.Event()

    async def broken(ledger_id: int, missing: object) -> None:
        broke.set()
        raise KeyError("a bug")

    queue._publish = broken  # type: ignore[method-assign]
    queue.note(7, 0, 0, "b1", "test")
    await broke.wait()
    queue._publish = publish  # type: ignore[method-assign]
    await asyncio.sleep(0)
    queue.note(7, 5, 5, "b1", "test")
    await queue.close(timeout_s=5)
    path = item_path("/ledgers", 7)
    missing, _ = decode_item((await store.get(path)).value, path=path)
    assert missing == {"b1": [(0, 0), (5, 5)]}


async def test_a_close_that_runs_out_of_time_names_the_ledger_that_was_being_published(
    store: MetadataStore,
) -> None:
    queue = queue_of(store)
    began = asyncio.Event()

    async def stuck(ledger_id: int, missing: object) -> None:
        began.set()
        await asyncio.Event().wait()

    queue._publish = stuck  # type: ignore[method-assign]
    queue.note(7, 0, 0, "b1", "test")
    queue.note(8, 0, 0, "b1", "test")
    await began.wait()
    with capture_logs() as logs:
        await queue.close(timeout_s=0.0)
    assert [each["ledgers"] for each in logs] == [[7, 8]]
