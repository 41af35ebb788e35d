"""The sweep of an object store: what it deletes, when, and how much it remembers."""

from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import cast

import pytest

from magnetar.ledger.errors import ObjectStoreUnavailableError
from magnetar.ledger.managed_log.log_metadata import CREATED_PROPERTY, LogLedger, LogMetadata
from magnetar.ledger.managed_log.log_objects import LedgerObject, ObjectState
from magnetar.ledger.metadata.store import Versioned
from magnetar.ledger.offloading.backup_pins import BackupPins
from magnetar.ledger.offloading.directory_store import DirectoryStore
from magnetar.ledger.offloading.object_keys import ledgers_prefix, object_base
from magnetar.ledger.offloading.object_store import StoredObject
from magnetar.ledger.offloading.sweeper import SweepCounts, Sweeper
from tests.unit.cursors.doubles import MemoryStore
from tests.unit.ledger.offloading.scrubbed_log import HandClock

BASE = object_base("main", "", "instance", "/log")
ATTEMPT = "ab" * 16
GRACE_S = 100.0
LIMIT = 5
PAGE = 2


class Files(DirectoryStore):
    """A directory whose lists have small pages, and can break off."""

    pages_max: int | None = None

    async def list(self, prefix: str) -> AsyncIterator[Sequence[StoredObject]]:
        pages = 0
        async for page in super().list(prefix):
            for at in range(0, len(page), PAGE):
                if pages == self.pages_max:
                    raise ObjectStoreUnavailableError("503")
                pages += 1
                yield page[at : at + PAGE]


class World:
    """A log whose node names ledger 0, a sweeper that remembers few keys, and its backups."""

    def __init__(self, root: Path) -> None:
        self.files = Files(root)
        self.clock = HandClock()
        self.nodes = MemoryStore()
        named = LogLedger(0, 1, 1, 1, LedgerObject(ObjectState.COPIED, ATTEMPT, 0))
        self.nodes.nodes["/log"] = Versioned(
            LogMetadata((named,), object_bases=(BASE,)).to_json(), 0
        )
        self.sweeper = Sweeper(
            self.files,
            self.nodes,
            ledgers_prefix("", "instance"),
            clock=self.clock,
            grace_s=GRACE_S,
            unnamed_max=LIMIT,
            pins=cast(BackupPins, self),
        )
        self.in_backups: set[str] = set()

    async def pinned(self, keys: Sequence[str]) -> frozenset[str]:
        return frozenset(self.in_backups.intersection(keys))

    async def put(self, ledgers: int) -> None:
        async def pieces() -> AsyncIterator[bytes]:
            yield b"x"

        for ledger_id in range(ledgers):
            await self.files.put(BASE.key(ledger_id, ATTEMPT), pieces())

    async def left(self) -> int:
        return sum([len(page) async for page in self.files.list("")])

    async def sweep(self, *, may_delete: bool = True) -> SweepCounts:
        counts = await self.sweeper.sweep(may_delete=lambda: may_delete)
        self.clock.now_s += GRACE_S
        return counts


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


async def test_what_no_log_names_is_deleted_in_a_pass_after_the_grace(world: World) -> None:
    await world.put(3)
    assert await world.sweep() == SweepCounts(objects=3, unnamed=2)
    assert (await world.sweep()).deleted == 2
    assert await world.left() == 1


async def test_objects_of_a_log_whose_node_was_lost_stay_and_those_of_a_deleted_one_go(
    world: World,
) -> None:
    await world.put(3)
    del world.nodes.nodes["/log"]
    world.nodes.lost.add("/log")
    assert await world.sweep() == SweepCounts(objects=3, undecided=3)
    assert await world.sweep() == SweepCounts(objects=3, undecided=3)
    assert await world.left() == 3
    world.nodes.lost.clear()
    await world.sweep()
    assert (await world.sweep()).deleted == 3


async def test_objects_older_than_a_log_that_was_created_anew_stay_unless_the_former_was_deleted(
    world: World,
) -> None:
    """The metadata file lost the log, and a client that used it created it again."""
    await world.put(2)
    written_ms = [each.written_ms async for page in world.files.list("") for each in page]
    created = {CREATED_PROPERTY: str(max(written_ms) + 1)}
    world.nodes.nodes["/log"] = Versioned(LogMetadata(properties=created).to_json(), 0)
    world.nodes.records_deletions = True
    for deleted_ms in (None, min(written_ms) - 3_600_000):
        if deleted_ms is not None:  # of a log before the lost one
            world.nodes.deleted["/log"] = deleted_ms
        assert await world.sweep() == SweepCounts(objects=2, undecided=2)
    world.nodes.deleted["/log"] = max(written_ms) + 1
    assert await world.sweep() == SweepCounts(objects=2, unnamed=2)
    assert (await world.sweep()).deleted == 2


async def test_objects_of_a_log_that_was_lost_after_one_of_that_name_was_deleted_stay(
    world: World,
) -> None:
    await world.put(1)
    del world.nodes.nodes["/log"]
    world.nodes.records_deletions = True
    world.nodes.deleted["/log"] = 1
    assert await world.sweep() == SweepCounts(objects=1, undecided=1)


@pytest.mark.parametrize(("unnamed", "put_off"), [(LIMIT, 0), (LIMIT + 1, 1)])
async def test_beyond_the_limit_unnamed_objects_wait_for_later_passes(
    world: World, unnamed: int, put_off: int
) -> None:
    await world.put(1 + unnamed)
    first = await world.sweep()
    assert (first.unnamed, first.put_off) == (unnamed, put_off)
    assert world.sweeper.remembered == LIMIT
    assert (await world.sweep()).deleted == LIMIT
    for _ in range(2):
        await world.sweep()
    assert await world.left() == 1


async def test_the_limit_holds_however_often_a_pass_breaks_off(world: World) -> None:
    await world.put(3 * LIMIT)
    await world.sweep(may_delete=False)
    world.files.pages_max = LIMIT
    for _ in range(3):
        with pytest.raises(ObjectStoreUnavailableError):
            await world.sweeper.sweep(may_delete=lambda: False)
        assert world.sweeper.remembered <= LIMIT
    world.files.pages_max = None
    for _ in range(6):
        await world.sweep()
    assert await world.left() == 1


async def test_objects_of_backups_keep_no_others_from_being_deleted(world: World) -> None:
    await world.put(1 + 2 * LIMIT + 2)
    world.in_backups = {BASE.key(each, ATTEMPT) for each in range(1, 1 + 2 * LIMIT)}
    for _ in range(20):
        await world.sweep()
        assert world.sweeper.remembered <= LIMIT
    assert await world.left() == 1 + len(world.in_backups)
