"""The ledger manager on both stores: ids, lost replies, listing, refused values."""

import asyncio
import random
from collections.abc import Callable

import pytest

from magnetar.ledger.errors import (
    BadVersionError,
    InvalidLedgerMetadataError,
    LedgerIdsExhaustedError,
    MetadataUnavailableError,
    NoNodeError,
    NoSuchLedgerError,
    UnknownOutcomeError,
)
from magnetar.ledger.ledger_manager import (
    CREATE_ATTEMPTS_MAX,
    LEDGER_ID_LIMIT,
    LedgerManager,
    ledger_path,
)
from magnetar.ledger.ledger_metadata import Fragment, LedgerMetadata, LedgerState
from magnetar.ledger.metadata import MetadataStore, Versioned, Watch, WatchEvent
from magnetar.ledger.metadata.store import SessionCallback, SessionState, WatchCallback
from magnetar.ledger.system import SystemClock
from tests.integration.ledger.metadata_stores import Events, Stores

ROOT = "/ledgers"


def make(ledger_id: int, creation_token: int) -> LedgerMetadata:
    return LedgerMetadata(
        ledger_id=ledger_id,
        ensemble_size=3,
        write_quorum=3,
        ack_quorum=2,
        state=LedgerState.OPEN,
        last_entry_id=-1,
        length=0,
        ensembles=(Fragment(0, ("b1", "b2", "b3")),),
        password=b"\x00secret",
        created_ms=1_700_000_000_000,
        creation_token=creation_token,
    )


def manager_on(store: MetadataStore, *, seed: int = 1) -> LedgerManager:
    return LedgerManager(store, random=random.Random(seed), clock=SystemClock(), root=ROOT)


@pytest.fixture
def manager(store: MetadataStore) -> LedgerManager:
    return manager_on(store)


class LosingStore:
    """A store handle that loses the replies to chosen creations, before or after they happen."""

    def __init__(self, store: MetadataStore) -> None:
        self._store = store
        self.lose: Callable[[str], str | None] = lambda path: None
        self.before_create: Callable[[str], object] = lambda path: None

    @property
    def session_state(self) -> SessionState:
        return self._store.session_state

    @property
    def session_timeout_ms(self) -> int:
        return self._store.session_timeout_ms

    async def create(
        self, path: str, value: bytes = b"", *, ephemeral: bool = False, sequential: bool = False
    ) -> str:
        fault = self.lose(path)
        if fault == "before":
            raise UnknownOutcomeError(path)
        created = await self._store.create(path, value, ephemeral=ephemeral, sequential=sequential)
        if fault == "after":
            raise UnknownOutcomeError(path)
        return created

    async def get(self, path: str) -> Versioned:
        return await self._store.get(path)

    async def set(self, path: str, value: bytes, *, version: int) -> int:
        return await self._store.set(path, value, version=version)

    async def delete(self, path: str, *, version: int | None = None) -> None:
        await self._store.delete(path, version=version)

    async def exists(self, path: str) -> int | None:
        return await self._store.exists(path)

    async def children(self, path: str) -> list[str]:
        return await self._store.children(path)

    def watch(self, path: str, callback: WatchCallback) -> Watch:
        return self._store.watch(path, callback)

    def on_session_change(self, callback: SessionCallback) -> Watch:
        return self._store.on_session_change(callback)

    async def close(self) -> None:
        await self._store.close()


def losing_once(fault: str, part: str) -> Callable[[str], str | None]:
    """Lose the reply to the first creation of a path with the part in it."""
    left = [fault]
    return lambda path: left.pop() if left and part in path else None


async def listed(manager: LedgerManager) -> list[int]:
    return [ledger_id async for ledger_id in manager.ledger_ids()]


# --- create --------------------------------------------------------------------------------------


async def test_a_created_ledger_reads_back_and_ids_start_at_zero(manager: LedgerManager) -> None:
    created = await manager.create(make)
    assert created.metadata.ledger_id == 0
    assert created.version == 0
    assert await manager.read(0) == created


async def test_the_node_lies_at_the_2_4_4_path(
    manager: LedgerManager, store: MetadataStore
) -> None:
    await manager.create(make)
    await manager.create(make)
    assert await store.children(f"{ROOT}/00/0000") == ["L0000", "L0001"]
    assert ledger_path(ROOT, 1) == f"{ROOT}/00/0000/L0001"
    assert ledger_path(ROOT, 1_234_567_890) == f"{ROOT}/12/3456/L7890"


async def test_the_id_generator_leaves_no_nodes_behind(
    manager: LedgerManager, store: MetadataStore
) -> None:
    for _ in range(3):
        await manager.create(make)
    assert await store.children(f"{ROOT}/idgen") == []


async def test_ids_are_unique_among_concurrent_creators(stores: Stores) -> None:
    managers = [manager_on(await stores.open(), seed=n) for n in range(3)]
    created = await asyncio.gather(
        *(manager.create(make) for manager in managers for _ in range(10))
    )
    ids = sorted(ledger.metadata.ledger_id for ledger in created)
    assert len(set(ids)) == 30
    assert await listed(managers[0]) == ids


async def test_an_id_whose_node_is_foreign_is_passed_over(
    manager: LedgerManager, store: MetadataStore
) -> None:
    foreign = make(0, creation_token=99)
    await store.create(ledger_path(ROOT, 0), foreign.to_json())
    created = await manager.create(make)
    assert created.metadata.ledger_id == 1
    assert (await manager.read(0)).metadata == foreign


async def test_an_id_whose_node_is_garbage_is_passed_over(
    manager: LedgerManager, store: MetadataStore
) -> None:
    await store.create(ledger_path(ROOT, 0), b"garbage")
    assert (await manager.create(make)).metadata.ledger_id == 1


async def test_a_creation_whose_reply_was_lost_is_recognised_by_its_token(
    store: MetadataStore,
) -> None:
    losing = LosingStore(store)
    losing.lose = losing_once("after", "/L")
    manager = manager_on(losing)
    created = await manager.create(make)
    assert created.metadata.ledger_id == 0
    assert await manager.read(0) == created
    assert await listed(manager) == [0]


async def test_a_creation_that_was_lost_on_its_way_takes_another_id(store: MetadataStore) -> None:
    """The lost request could still arrive: its id must not be used for something else."""
    losing = LosingStore(store)
    losing.lose = losing_once("before", "/L")
    manager = manager_on(losing)
    assert (await manager.create(make)).metadata.ledger_id == 1
    assert await listed(manager) == [1]


@pytest.mark.parametrize(("fault", "expected"), [("before", 0), ("after", 1)])
async def test_a_lost_id_is_a_gap_and_no_failure(
    store: MetadataStore, fault: str, expected: int
) -> None:
    losing = LosingStore(store)
    losing.lose = losing_once(fault, "/idgen/")
    assert (await manager_on(losing).create(make)).metadata.ledger_id == expected


async def test_a_creation_gives_up_after_a_bounded_number_of_attempts(
    store: MetadataStore,
) -> None:
    attempts: list[str] = []
    losing = LosingStore(store)

    def lose(path: str) -> str:
        attempts.append(path)
        return "before"

    losing.lose = lose
    with pytest.raises(MetadataUnavailableError):
        await manager_on(losing).create(make)
    assert len(attempts) == CREATE_ATTEMPTS_MAX


# --- read, write, delete -------------------------------------------------------------------------


async def test_write_is_a_compare_and_set(manager: LedgerManager) -> None:
    ledger = await manager.create(make)
    written = await manager.write(ledger.metadata.in_recovery(), version=ledger.version)
    assert written.version == 1
    assert await manager.read(0) == written
    with pytest.raises(BadVersionError):
        await manager.write(
            ledger.metadata.closed(last_entry_id=5, length=50), version=ledger.version
        )
    assert await manager.read(0) == written


async def test_a_ledger_that_is_not_there_is_reported_as_such(manager: LedgerManager) -> None:
    await manager.create(make)
    for ledger_id in (1, LEDGER_ID_LIMIT - 1, LEDGER_ID_LIMIT, -1):
        with pytest.raises(NoSuchLedgerError):
            await manager.read(ledger_id)
    with pytest.raises(NoSuchLedgerError):
        await manager.delete(1)
    with pytest.raises(NoSuchLedgerError):
        await manager.write(make(1, 1), version=0)


@pytest.mark.parametrize(
    "damage",
    [
        lambda data: b"",
        lambda data: data[:-1],
        lambda data: data.replace(b'"ack_quorum":2', b'"ack_quorum":4'),
        lambda data: data.replace(b'"b2"', b'"b1"'),
        lambda data: data.replace(b"[0,", b"[1,"),
        lambda data: data.replace(b'"ledger_id":0', b'"ledger_id":7'),
        lambda data: data.replace(b'"format_version":1', b'"format_version":2'),
        lambda data: data.replace(b"{", b'{"surprise":1,', 1),
    ],
)
async def test_a_value_that_breaks_a_rule_is_refused_and_left_as_it_is(
    manager: LedgerManager, store: MetadataStore, damage: Callable[[bytes], bytes]
) -> None:
    await manager.create(make)
    path = ledger_path(ROOT, 0)
    damaged = damage((await store.get(path)).value)
    await store.set(path, damaged, version=0)
    with pytest.raises(InvalidLedgerMetadataError):
        await manager.read(0)
    assert await store.get(path) == Versioned(damaged, 1)


async def test_delete_removes_emptied_directories_and_keeps_the_others(
    manager: LedgerManager, store: MetadataStore
) -> None:
    for _ in range(2):
        await manager.create(make)
    await manager.delete(0)
    assert await store.children(f"{ROOT}/00/0000") == ["L0001"]
    await manager.delete(1)
    assert await store.children(ROOT) == ["idgen"]
    with pytest.raises(NoSuchLedgerError):
        await manager.read(0)


async def test_ids_are_not_used_again_when_all_ledgers_are_deleted(manager: LedgerManager) -> None:
    await manager.create(make)
    await manager.delete(0)
    assert (await manager.create(make)).metadata.ledger_id == 1


async def test_creations_and_deletions_in_one_directory_do_not_disturb_each_other(
    stores: Stores,
) -> None:
    managers = [manager_on(await stores.open(), seed=n) for n in range(3)]

    async def come_and_go(manager: LedgerManager) -> None:
        for _ in range(10):
            await manager.delete((await manager.create(make)).metadata.ledger_id)

    await asyncio.gather(*map(come_and_go, managers))
    assert await listed(managers[0]) == []


async def test_the_id_generator_says_when_it_is_at_its_end(store: MetadataStore) -> None:
    class LastIds(LosingStore):
        async def create(
            self,
            path: str,
            value: bytes = b"",
            *,
            ephemeral: bool = False,
            sequential: bool = False,
        ) -> str:
            return f"{path}{next(numbers)}" if sequential else await super().create(path, value)

    numbers = iter(["2147483646", "2147483647"])
    manager = manager_on(LastIds(store))
    assert (await manager.create(make)).metadata.ledger_id == LEDGER_ID_LIMIT - 1
    with pytest.raises(LedgerIdsExhaustedError):
        await manager.create(make)
    numbers = iter(["-2147483648"])
    with pytest.raises(LedgerIdsExhaustedError):
        await manager.create(make)


async def test_a_watch_tells_of_another_clients_write(stores: Stores) -> None:
    mine, other = manager_on(await stores.open()), manager_on(await stores.open())
    ledger = await mine.create(make)
    events = Events()
    mine.watch(0, events)
    await mine.read(0)
    await other.write(ledger.metadata.in_recovery(), version=0)
    await events.wait_for(WatchEvent.CHANGED)
    await other.delete(0)
    await events.wait_for(WatchEvent.DELETED)


# --- listing -------------------------------------------------------------------------------------


async def test_ids_are_listed_in_numeric_order(
    manager: LedgerManager, store: MetadataStore
) -> None:
    ids = [LEDGER_ID_LIMIT - 1, 3, 10_000, 9_999, 100_000_000, 99_999_999, 20, 1_000_000]
    for ledger_id in ids:
        await store.create(ledger_path(ROOT, ledger_id), make(ledger_id, 1).to_json())
    assert await listed(manager) == sorted(ids)


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
        "/available/readonly/b1",
        "/cookies/b1",
        "/idgen/ID-0000000009",
        "/idgen-long/HOB-0000000001",
        "/LAYOUT",
        "/INSTANCEID",
        "/underreplication",
    ):
        await store.create(ROOT + path)
    assert await listed(manager) == [200_010_005, 300_000_001]


async def test_directories_that_vanish_during_the_listing_do_not_end_it(
    manager: LedgerManager, store: MetadataStore
) -> None:
    ids = [5, 20_005, 100_000_005, 200_000_005]
    for ledger_id in ids:
        await store.create(ledger_path(ROOT, ledger_id), make(ledger_id, 1).to_json())
    seen = []
    async for ledger_id in manager.ledger_ids():
        seen.append(ledger_id)
        if ledger_id == 5:
            await manager.delete(20_005)
            await manager.delete(100_000_005)
    assert seen == [5, 200_000_005]


async def test_a_missing_root_is_an_error_and_no_empty_listing(manager: LedgerManager) -> None:
    """Garbage collection would otherwise delete everything when it looks in the wrong place."""
    with pytest.raises(NoNodeError):
        await listed(manager)
