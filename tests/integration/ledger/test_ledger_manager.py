"""Every ledger manager on both stores: ids, lost replies, listing, refused values.

What holds for one layout only is in `test_ledger_layouts.py`.
"""

import asyncio
import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest

from magnetar.ledger.errors import (
    BadVersionError,
    InvalidLedgerMetadataError,
    MetadataUnavailableError,
    NoNodeError,
    NoSuchLedgerError,
    SessionExpiredError,
)
from magnetar.ledger.layouts.ledger_layout import LayoutName
from magnetar.ledger.ledger_manager import CREATE_ATTEMPTS_MAX, LedgerManager
from magnetar.ledger.ledger_metadata import LEDGER_ID_MAX
from magnetar.ledger.metadata import MetadataStore, Versioned, WatchEvent
from magnetar.ledger.metadata.embedded import EmbeddedStore
from tests.integration.ledger.ledger_managers import (
    FIRST_ID,
    LAYOUTS,
    ROOT,
    LosingStore,
    listed,
    losing_once,
    make,
    manager_on,
    path_of,
)
from tests.integration.ledger.metadata_stores import Events, Stores


@pytest.fixture(params=LAYOUTS)
def layout(request: pytest.FixtureRequest) -> LayoutName:
    name: LayoutName = request.param
    return name


@pytest.fixture
def first(layout: LayoutName) -> int:
    """The id of the first ledger of an empty root."""
    return FIRST_ID[layout]


@pytest.fixture
def manager(store: MetadataStore, layout: LayoutName) -> LedgerManager:
    return manager_on(store, layout)


# --- create --------------------------------------------------------------------------------------


async def test_a_created_ledger_reads_back(manager: LedgerManager, first: int) -> None:
    created = await manager.create(make)
    assert created.metadata.ledger_id == first
    assert created.version == 0
    assert await manager.read(first) == created


async def test_ids_follow_each_other_and_lie_at_their_paths(
    manager: LedgerManager, store: MetadataStore, layout: LayoutName, first: int
) -> None:
    for ledger_id in (first, first + 1):
        assert (await manager.create(make)).metadata.ledger_id == ledger_id
        assert await store.exists(path_of(layout, ledger_id)) == 0


async def test_ids_are_unique_among_concurrent_creators(stores: Stores, layout: LayoutName) -> None:
    managers = [manager_on(await stores.open(), layout, seed=n) for n in range(3)]
    created = await asyncio.gather(
        *(manager.create(make) for manager in managers for _ in range(10))
    )
    ids = sorted(ledger.metadata.ledger_id for ledger in created)
    assert len(set(ids)) == 30
    assert await listed(managers[0]) == ids


async def test_an_id_whose_node_is_foreign_is_passed_over(
    manager: LedgerManager, store: MetadataStore, layout: LayoutName, first: int
) -> None:
    foreign = make(first, creation_token=99)
    await store.create(path_of(layout, first), foreign.to_json())
    created = await manager.create(make)
    assert created.metadata.ledger_id == first + 1
    assert (await manager.read(first)).metadata == foreign


async def test_an_id_whose_node_is_garbage_is_passed_over(
    manager: LedgerManager, store: MetadataStore, layout: LayoutName, first: int
) -> None:
    await store.create(path_of(layout, first), b"garbage")
    assert (await manager.create(make)).metadata.ledger_id == first + 1


async def test_a_creation_whose_reply_was_lost_is_recognised_by_its_token(
    store: MetadataStore, layout: LayoutName, first: int
) -> None:
    losing = LosingStore(store)
    losing.lose = losing_once("after", path_of(layout, first))
    manager = manager_on(losing, layout)
    created = await manager.create(make)
    assert created.metadata.ledger_id == first
    assert await manager.read(first) == created
    assert await listed(manager) == [first]


async def test_a_creation_that_was_lost_on_its_way_takes_another_id(
    store: MetadataStore, layout: LayoutName, first: int
) -> None:
    """The lost request could still arrive: its id must not be used for something else."""
    losing = LosingStore(store)
    losing.lose = losing_once("before", path_of(layout, first))
    manager = manager_on(losing, layout)
    assert (await manager.create(make)).metadata.ledger_id == first + 1
    assert await listed(manager) == [first + 1]


@pytest.mark.parametrize(("fault", "gap"), [("before", 0), ("after", 1)])
async def test_a_lost_id_is_a_gap_and_no_failure(
    store: MetadataStore, layout: LayoutName, first: int, fault: str, gap: int
) -> None:
    losing = LosingStore(store)
    losing.lose = losing_once(fault, "/ID-")
    assert (await manager_on(losing, layout).create(make)).metadata.ledger_id == first + gap


@pytest.mark.parametrize("fault", ["before", "after"])
async def test_a_lost_reply_to_the_first_claim_of_the_root_is_no_failure(
    store: MetadataStore, layout: LayoutName, first: int, fault: str
) -> None:
    losing = LosingStore(store)
    losing.lose = losing_once(fault, "/LAYOUT")
    assert (await manager_on(losing, layout).create(make)).metadata.ledger_id == first


async def test_the_end_of_the_session_fails_no_creation(tmp_path: Path) -> None:
    """Ids come from ephemeral nodes; who was stopped for long hears at the next one that the
    session is over."""
    path = tmp_path / "metadata.db"
    store = await EmbeddedStore.open(str(path))
    manager = manager_on(store)
    await manager.create(make)
    with sqlite3.connect(path, isolation_level=None) as other:
        other.execute("DELETE FROM sessions")
    created = await manager.create(make)
    assert await listed(manager) == [0, created.metadata.ledger_id]
    await store.close()


async def test_a_creation_gives_up_after_a_bounded_number_of_attempts(
    store: MetadataStore, layout: LayoutName
) -> None:
    attempts: list[str] = []
    losing = LosingStore(store)

    def lose(path: str) -> str:
        attempts.append(path)
        return "before"

    losing.lose = lose
    with pytest.raises(MetadataUnavailableError):
        await manager_on(losing, layout).create(make)
    assert len(attempts) == CREATE_ATTEMPTS_MAX


# --- read, write, delete -------------------------------------------------------------------------


async def test_write_is_a_compare_and_set(manager: LedgerManager, first: int) -> None:
    ledger = await manager.create(make)
    written = await manager.write(ledger.metadata.in_recovery(), version=ledger.version)
    assert written.version == 1
    assert await manager.read(first) == written
    with pytest.raises(BadVersionError):
        await manager.write(
            ledger.metadata.closed(last_entry_id=5, length=50), version=ledger.version
        )
    assert await manager.read(first) == written


async def test_a_ledger_that_is_not_there_is_reported_as_such(
    manager: LedgerManager, first: int
) -> None:
    await manager.create(make)
    for ledger_id in (first + 1, (1 << 31) - 2, (1 << 31) - 1, LEDGER_ID_MAX, -1, 1 << 63):
        with pytest.raises(NoSuchLedgerError):
            await manager.read(ledger_id)
    with pytest.raises(NoSuchLedgerError):
        await manager.delete(first + 1)
    with pytest.raises(NoSuchLedgerError):
        await manager.write(make(first + 1, 1), version=0)


@pytest.mark.parametrize(
    "damage",
    [
        lambda data: b"",
        lambda data: data[:-1],
        lambda data: data.replace(b'"ack_quorum":2', b'"ack_quorum":4'),
        lambda data: data.replace(b'"b2"', b'"b1"'),
        lambda data: data.replace(b"[0,", b"[1,"),
        lambda data: data.replace(b'"ledger_id":', b'"ledger_id":7'),
        lambda data: data.replace(b'"format_version":1', b'"format_version":2'),
        lambda data: data.replace(b"{", b'{"surprise":1,', 1),
    ],
)
async def test_a_value_that_breaks_a_rule_is_refused_and_left_as_it_is(
    manager: LedgerManager,
    store: MetadataStore,
    layout: LayoutName,
    first: int,
    damage: Callable[[bytes], bytes],
) -> None:
    await manager.create(make)
    path = path_of(layout, first)
    damaged = damage((await store.get(path)).value)
    await store.set(path, damaged, version=0)
    with pytest.raises(InvalidLedgerMetadataError):
        await manager.read(first)
    assert await store.get(path) == Versioned(damaged, 1)


async def test_delete_leaves_nothing_of_the_ledgers_and_no_empty_directory(
    manager: LedgerManager, store: MetadataStore, layout: LayoutName, first: int
) -> None:
    for _ in range(2):
        await manager.create(make)
    await manager.delete(first)
    assert await listed(manager) == [first + 1]
    assert await store.exists(path_of(layout, first + 1)) == 0
    await manager.delete(first + 1)
    idgen = "idgen-long" if layout == "longhierarchical" else "idgen"
    assert await store.children(ROOT) == ["LAYOUT", idgen]
    with pytest.raises(NoSuchLedgerError):
        await manager.read(first)


async def test_ids_are_not_used_again_when_all_ledgers_are_deleted(
    manager: LedgerManager, first: int
) -> None:
    await manager.create(make)
    await manager.delete(first)
    assert (await manager.create(make)).metadata.ledger_id == first + 1


async def test_ids_that_are_held_somewhere_are_not_given_out_again(
    manager: LedgerManager, first: int
) -> None:
    """As after the metadata was restored from a backup: its counter is as old."""
    behind: list[int] = []
    await manager.pass_ids([], ids_max=100, on_behind=behind.append)
    assert (await manager.create(make)).metadata.ledger_id == first
    await manager.pass_ids([first], ids_max=100, on_behind=behind.append)
    assert (await manager.create(make)).metadata.ledger_id == first + 1, "it is there"
    held = [first, first + 70, first + (1 << 30)]
    await manager.pass_ids(held, ids_max=100, on_behind=behind.append)
    created = (await manager.create(make)).metadata.ledger_id
    assert created > first + 70
    assert behind == [68]


async def test_ids_that_are_held_somewhere_are_passed_where_there_is_no_ledger_yet(
    manager: LedgerManager, first: int
) -> None:
    """As after a backup of a cluster that nobody had used was restored."""
    await manager.pass_ids([first + 7], ids_max=100, on_behind=lambda _: None)
    assert (await manager.create(make)).metadata.ledger_id > first + 7


async def test_ids_that_are_passed_already_cost_none_and_others_the_distance(
    manager: LedgerManager, first: int
) -> None:
    await manager.create(make)
    assert await manager.ids_to_pass(first) == 0, "the ledger is there"
    await manager.delete(first)
    assert await manager.ids_to_pass(first) == 0
    assert 0 < await manager.ids_to_pass(first + (1 << 30)) < 1 << 30


async def test_ids_are_passed_also_if_the_session_ends_meanwhile(
    manager: LedgerManager, first: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    next_id, failures = manager._layout.next_id, iter([None, SessionExpiredError("gone"), None])

    async def next_or_not() -> int:
        if (failure := next(failures, None)) is not None:
            raise failure
        return await next_id()

    monkeypatch.setattr(manager._layout, "next_id", next_or_not)
    await manager.pass_ids([first + 5], ids_max=100, on_behind=lambda _: None)
    assert (await manager.create(make)).metadata.ledger_id > first + 5


async def test_creations_and_deletions_in_one_directory_do_not_disturb_each_other(
    stores: Stores, layout: LayoutName
) -> None:
    managers = [manager_on(await stores.open(), layout, seed=n) for n in range(3)]

    async def come_and_go(manager: LedgerManager) -> None:
        for _ in range(10):
            await manager.delete((await manager.create(make)).metadata.ledger_id)

    await asyncio.gather(*map(come_and_go, managers))
    assert await listed(managers[0]) == []


async def test_a_watch_tells_of_another_clients_write(
    stores: Stores, layout: LayoutName, first: int
) -> None:
    mine, other = [manager_on(await stores.open(), layout) for _ in range(2)]
    ledger = await mine.create(make)
    events = Events()
    mine.watch(first, events)
    await mine.read(first)
    await other.write(ledger.metadata.in_recovery(), version=0)
    await events.wait_for(WatchEvent.CHANGED)
    await other.delete(first)
    await events.wait_for(WatchEvent.DELETED)


# --- listing -------------------------------------------------------------------------------------


async def test_an_empty_root_is_one_complete_range(manager: LedgerManager) -> None:
    ledger = await manager.create(make)
    await manager.delete(ledger.metadata.ledger_id)
    ranges = [each async for each in manager.ledger_ranges()]
    assert [(each.first_id, each.last_id, each.ledger_ids) for each in ranges] == [
        (0, LEDGER_ID_MAX, ())
    ]


async def test_ids_are_listed_in_numeric_order_and_ranges_cover_all_ids(
    manager: LedgerManager, store: MetadataStore, layout: LayoutName
) -> None:
    ids = [(1 << 31) - 2, 3, 10_000, 9_999, 100_000_000, 99_999_999, 20, 1_000_000]
    if layout != "flat":
        ids += [(1 << 31) - 1, 2_147_489_999, 2_147_490_000, 1 << 32, (1 << 32) + 9_999]
        ids += [(1 << 32) + 10_000, 1 << 62, LEDGER_ID_MAX]
    for ledger_id in ids:
        await store.create(path_of(layout, ledger_id), make(ledger_id, 1).to_json())
    assert await listed(manager) == sorted(ids)
    next_id = 0
    async for each in manager.ledger_ranges():
        assert each.first_id == next_id
        assert all(each.first_id <= ledger_id <= each.last_id for ledger_id in each.ledger_ids)
        next_id = each.last_id + 1
    assert next_id == LEDGER_ID_MAX + 1


async def test_what_is_no_ledger_is_not_listed(
    manager: LedgerManager, store: MetadataStore, first: int
) -> None:
    await manager.create(make)
    for path in (
        "/available/readonly/b1",
        "/cookies/b1",
        "/idgen/ID-0000000009",
        "/idgen-long/HOB-0000000007",
        "/INSTANCEID",
        "/underreplication",
        "/L1",
        "/X0000000001",
    ):
        await store.create(ROOT + path)
    assert await listed(manager) == [first]


async def test_a_missing_root_is_an_error_and_no_empty_listing(manager: LedgerManager) -> None:
    """Garbage collection would otherwise delete everything when it looks in the wrong place."""
    with pytest.raises(NoNodeError):
        await listed(manager)
