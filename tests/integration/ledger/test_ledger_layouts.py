"""What is special to one ledger layout, and how a root keeps to the one that it has."""

import asyncio
import json
import random

import pytest

from magnetar.ledger.errors import LedgerIdsExhaustedError, LedgerLayoutError
from magnetar.ledger.layouts.ledger_ids import LEDGER_ID_LIMIT, LongLedgerIds
from magnetar.ledger.layouts.ledger_layout import LayoutName
from magnetar.ledger.layouts.ledger_layout_hierarchical import ledger_path
from magnetar.ledger.ledger_manager import LedgerManager
from magnetar.ledger.ledger_metadata import LEDGER_ID_MAX
from magnetar.ledger.metadata import MetadataStore
from magnetar.ledger.system import SystemClock
from tests.integration.ledger.ledger_managers import (
    LAYOUTS,
    ROOT,
    LosingStore,
    listed,
    make,
    manager_on,
)
from tests.integration.ledger.metadata_stores import Stores


@pytest.fixture
def manager(store: MetadataStore) -> LedgerManager:
    return manager_on(store)


class CountedStore(LosingStore):
    """A store whose counters stand where the test wants them, as "directory: counter"."""

    def __init__(self, store: MetadataStore, counters: dict[str, int]) -> None:
        super().__init__(store)
        self._counters = counters

    async def create(
        self, path: str, value: bytes = b"", *, ephemeral: bool = False, sequential: bool = False
    ) -> str:
        if not sequential:
            return await super().create(path, value, ephemeral=ephemeral)
        parent = path.split("/")[-2]
        number = self._counters.setdefault(parent, 0)
        self._counters[parent] += 1
        # As ZooKeeper prints its counter: a signed 32-bit number.
        signed = number if number < 1 << 31 else number - (1 << 32)
        return await super().create(f"{path}{signed:010d}", value, ephemeral=ephemeral)


# --- paths and ids -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("ledger_id", "path"),
    [
        (0, "/00/0000/L0000"),
        (1, "/00/0000/L0001"),
        (1_234_567_890, "/12/3456/L7890"),
        (LEDGER_ID_LIMIT - 1, "/21/4748/L3646"),
        (LEDGER_ID_LIMIT, "/000/0000/0021/4748/L3647"),
        (1 << 32, "/000/0000/0042/9496/L7296"),
        (LEDGER_ID_MAX, "/922/3372/0368/5477/L5807"),
    ],
)
def test_a_path_is_short_or_long_by_the_hybrid_rule(ledger_id: int, path: str) -> None:
    assert ledger_path(ROOT, ledger_id) == ROOT + path


@pytest.mark.parametrize("layout", LAYOUTS)
async def test_the_id_generators_leave_no_nodes_behind(
    store: MetadataStore, layout: LayoutName
) -> None:
    manager = manager_on(store, layout)
    for _ in range(3):
        await manager.create(make)
    directory = "idgen-long/HOB-0000000001" if layout == "longhierarchical" else "idgen"
    assert await store.children(f"{ROOT}/{directory}") == []


async def test_when_the_short_ids_are_used_up_the_long_ones_begin(store: MetadataStore) -> None:
    counted = CountedStore(store, {"idgen": LEDGER_ID_LIMIT - 1})
    manager = manager_on(counted)
    ids = [(await manager.create(make)).metadata.ledger_id for _ in range(3)]
    assert ids == [LEDGER_ID_LIMIT - 1, 1 << 32, (1 << 32) + 1]
    assert await listed(manager) == ids
    other = manager_on(CountedStore(store, {"idgen": 1 << 31, "HOB-0000000001": 2}))
    assert (await other.create(make)).metadata.ledger_id == (1 << 32) + 2
    for ledger_id in ids:
        await other.delete(ledger_id)
    assert await listed(manager) == [(1 << 32) + 2]


async def test_the_flat_manager_ends_with_the_short_ids(store: MetadataStore) -> None:
    manager = manager_on(CountedStore(store, {"idgen": LEDGER_ID_LIMIT - 1}), "flat")
    assert (await manager.create(make)).metadata.ledger_id == LEDGER_ID_LIMIT - 1
    for _ in range(2):  # then the counter turns negative
        with pytest.raises(LedgerIdsExhaustedError):
            await manager.create(make)


async def test_a_directory_of_long_ids_that_is_used_up_is_followed_by_the_next(
    store: MetadataStore,
) -> None:
    counters = {"HOB-0000000001": LEDGER_ID_LIMIT - 1}
    manager = manager_on(CountedStore(store, counters), "longhierarchical")
    ids = [(await manager.create(make)).metadata.ledger_id for _ in range(3)]
    assert ids == [(1 << 32) + LEDGER_ID_LIMIT - 1, 2 << 32, (2 << 32) + 1]
    assert await listed(manager) == ids


async def test_two_clients_that_begin_the_next_directory_at_once_share_it(stores: Stores) -> None:
    """Each handle sees the first directory at its end, as both would on one counter."""
    managers = []
    for _ in range(2):
        store = await stores.open()
        ids = LongLedgerIds(_FirstIsFull(store), ROOT)
        managers.append(ids)
    found = await asyncio.gather(*(ids.next_id() for ids in managers for _ in range(5)))
    assert sorted(found) == [(2 << 32) + n for n in range(10)]


class _FirstIsFull(LosingStore):
    async def create(
        self, path: str, value: bytes = b"", *, ephemeral: bool = False, sequential: bool = False
    ) -> str:
        if sequential and "/HOB-0000000001/" in path:
            return f"{path}{LEDGER_ID_LIMIT}"
        return await super().create(path, value, ephemeral=ephemeral, sequential=sequential)


async def test_the_long_ids_end_too(store: MetadataStore) -> None:
    await store.create(f"{ROOT}/idgen-long/HOB-{LEDGER_ID_LIMIT - 1:010d}")
    counted = CountedStore(store, {f"HOB-{LEDGER_ID_LIMIT - 1:010d}": LEDGER_ID_LIMIT - 1})
    ids = LongLedgerIds(counted, ROOT)
    assert await ids.next_id() <= LEDGER_ID_MAX
    with pytest.raises(LedgerIdsExhaustedError, match="no ledger id is left"):
        await ids.next_id()


# --- listing -------------------------------------------------------------------------------------


async def test_empty_and_foreign_directories_do_not_end_the_listing(
    manager: LedgerManager, store: MetadataStore
) -> None:
    for path in (
        "/00/0000",
        "/01",
        "/02/0001/L0005",
        "/02/0001/X0001",
        "/02/0001/L1",
        "/02/nothing",
        "/03/0000/L0001",
        "/000/0000/0042",
        "/000/0000/0042/9496/L7296",
        "/001",
    ):
        await store.create(ROOT + path)
    assert await listed(manager) == [200_010_005, 300_000_001, 1 << 32]


async def test_directories_that_vanish_during_the_listing_do_not_end_it(
    manager: LedgerManager, store: MetadataStore
) -> None:
    ids = [5, 20_005, 100_000_005, 200_000_005, 5 << 40]
    for ledger_id in ids:
        await store.create(ledger_path(ROOT, ledger_id), make(ledger_id, 1).to_json())
    seen = []
    async for ledger_id in manager.ledger_ids():
        seen.append(ledger_id)
        if ledger_id == 5:
            await manager.delete(20_005)
            await manager.delete(100_000_005)
    assert seen == [5, 200_000_005, 5 << 40]


@pytest.mark.parametrize(
    "path", ["/99/9999/L0001", "/000/0000/0000/0000/L0001", "/999/9999/9999/9999/L9999"]
)
async def test_a_ledger_in_the_wrong_place_stops_the_listing(
    manager: LedgerManager, store: MetadataStore, path: str
) -> None:
    """The node may be somebody's ledger: garbage collection must not take it for none."""
    await store.create(ROOT + path)
    with pytest.raises(LedgerLayoutError, match="another system writes to"):
        await listed(manager)


# --- LAYOUT --------------------------------------------------------------------------------------


@pytest.mark.parametrize("layout", LAYOUTS)
async def test_the_first_creation_names_the_manager_of_the_root(
    store: MetadataStore, layout: LayoutName
) -> None:
    await manager_on(store, layout).create(make)
    assert json.loads((await store.get(f"{ROOT}/LAYOUT")).value) == {
        "manager": layout,
        "manager_version": 1,
        "format_version": 1,
        "ledger_passwords": True,
    }


@pytest.mark.parametrize("layout", LAYOUTS)
async def test_a_root_of_another_manager_is_refused(
    store: MetadataStore, layout: LayoutName
) -> None:
    """Each would see none of the other's ledgers, and collect their entries as garbage."""
    created = await manager_on(store, layout).create(make)
    ledger_id = created.metadata.ledger_id
    for other in LAYOUTS:
        if other == layout:
            continue
        manager = manager_on(store, other)
        message = f"kept by the '{layout}' manager.* set to '{other}'.*Set ledger_manager"
        with pytest.raises(LedgerLayoutError, match=message):
            await manager.create(make)
        with pytest.raises(LedgerLayoutError, match=message):
            await manager.read(ledger_id)
        with pytest.raises(LedgerLayoutError, match=message):
            await manager.delete(ledger_id)
        with pytest.raises(LedgerLayoutError, match=message):
            await listed(manager)
    assert await listed(manager_on(store, layout)) == [ledger_id]


@pytest.mark.parametrize("layout", LAYOUTS)
async def test_a_root_without_layout_is_judged_by_what_it_holds(
    store: MetadataStore, layout: LayoutName
) -> None:
    """Roots from before there were LAYOUT nodes are hierarchical."""
    await store.create(ledger_path(ROOT, 0), make(0, 1).to_json())
    manager = manager_on(store, layout)
    if layout == "flat":
        with pytest.raises(LedgerLayoutError, match="holds '00'"):
            await listed(manager)
        with pytest.raises(LedgerLayoutError, match="holds '00'"):
            await manager.create(make)
        assert await store.exists(f"{ROOT}/LAYOUT") is None
    else:
        assert await listed(manager) == [0]
        await manager.create(make)
        assert await store.exists(f"{ROOT}/LAYOUT") == 0


async def test_reading_an_empty_root_does_not_claim_it(store: MetadataStore) -> None:
    await store.create(ROOT)
    assert await listed(manager_on(store, "flat")) == []
    assert await store.children(ROOT) == []


@pytest.mark.parametrize("layout", LAYOUTS)
async def test_who_follows_the_root_takes_the_layout_that_is_named_meanwhile(
    store: MetadataStore, layout: LayoutName
) -> None:
    follower = await LedgerManager.of_root(
        store, random=random.Random(1), clock=SystemClock(), root=ROOT
    )
    created = await manager_on(store, layout).create(make)
    ledger_id = created.metadata.ledger_id
    assert (await follower.read(ledger_id)).metadata == created.metadata
    assert await listed(follower) == [ledger_id]


async def test_of_many_first_clients_one_names_the_manager(stores: Stores) -> None:
    managers = [manager_on(await stores.open(), layout) for layout in LAYOUTS for _ in range(2)]
    outcomes = await asyncio.gather(
        *(manager.create(make) for manager in managers), return_exceptions=True
    )
    failed = [isinstance(each, LedgerLayoutError) for each in outcomes]
    assert failed.count(False) == 2
    assert failed[failed.index(False) + 1] is False


@pytest.mark.parametrize(
    "value",
    [
        b"",
        b"1\norg.apache.bookkeeper.meta.HierarchicalLedgerManagerFactory:1",
        b'{"manager":"hierarchical"}',
        b'{"manager":"hierarchical","manager_version":1,"format_version":1,"new":1}',
        b'{"manager":"hierarchical","manager_version":2,"format_version":1}',
        b'{"manager":"hierarchical","manager_version":1,"format_version":2}',
        b'{"manager":"msledger","manager_version":1,"format_version":1}',
    ],
)
async def test_a_layout_that_is_not_understood_is_refused(
    manager: LedgerManager, store: MetadataStore, value: bytes
) -> None:
    await store.create(f"{ROOT}/LAYOUT", value)
    with pytest.raises(LedgerLayoutError, match="choose another root"):
        await manager.create(make)
    assert (await store.get(f"{ROOT}/LAYOUT")).value == value
