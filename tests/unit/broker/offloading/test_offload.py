"""When a topic's ledgers move: by policy, on demand, and again after a failure."""

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from magnetar.broker.base.errors import ConflictError, NotAllowedError, ServiceNotReadyError
from magnetar.broker.base.settings.objects import ObjectSettings
from magnetar.broker.features.offloading import Offload, OffloadSurroundings
from magnetar.broker.policies.model import Policies
from magnetar.broker.topic import TopicPort
from magnetar.ledger.errors import (
    LogFencedError,
    ObjectIncompleteError,
    ObjectStoreRefusedError,
    ObjectStoreUnavailableError,
)
from magnetar.ledger.log import ManagedLog
from magnetar.ledger.managed_log.log_metadata import LogLedger
from magnetar.ledger.managed_log.log_objects import LedgerObject, ObjectBase, ObjectState
from magnetar.ledger.offloading.object_scrubber import ObjectScrubber
from magnetar.ledger.offloading.object_store import ObjectStore
from magnetar.ledger.offloading.offloader import OffloadCounts, Offloader
from magnetar.ledger.position import Position
from tests.unit.broker.memory_log import ManualClock

MOVES = Policies(offload_threshold_bytes=0, offload_deletion_lag_ms=1_000)
SETTINGS = ObjectSettings.model_validate(
    {
        "object_stores": [{"name": "main", "url": "s3://bucket"}],
        "offload_store": "main",
        "object_bytes_min": 0,
        "offload_retry_s": 1,
        "offload_retry_s_max": 3,
    }
)


class NoStores:
    def store(self, name: str) -> ObjectStore:
        raise ObjectStoreRefusedError(name)


class World:
    """A topic with a log of closed ledgers; it is its own offloader, whose copies may be held."""

    copies_at_once = 1

    path = "/log"

    def __init__(self, *ledgers: LogLedger, policies: Policies = MOVES) -> None:
        self.clock = ManualClock()
        self.clock.advance(1_000)
        self.ledgers = list(ledgers)
        self.objects = self
        self.counts = OffloadCounts()
        self.copied: list[int] = []
        self.deleted: list[int] = []
        self.bases: list[ObjectBase] = []
        self.error: Exception | None = None
        self.bad: set[int] = set()
        """Ledgers that cannot be copied."""
        self.unforgettable = False
        self.held: asyncio.Event | None = None
        self.prefers = False
        self.topic = SimpleNamespace(name="t", policies=policies, is_leaving=False)
        around = OffloadSurroundings(
            cast(Offloader, self),
            ObjectScrubber(NoStores(), bytes_per_s_max=0, clock=self.clock),
            {"main": "s3://b"},
            SETTINGS,
            self.clock,
        )
        self.offload = Offload(cast(TopicPort, self.topic), cast(ManagedLog, self), around)

    def prefer_objects(self, prefers: bool) -> None:
        self.prefers = prefers

    async def instance_id(self) -> str:
        return "instance"

    async def copy(self, _owned: Any, ledger_id: int, base: ObjectBase) -> None:
        if self.held is not None:
            await self.held.wait()
        if self.error is not None:
            raise self.error
        if ledger_id in self.bad:
            raise ObjectIncompleteError(f"ledger {ledger_id} cannot be read")
        self.copied.append(ledger_id)
        self.bases.append(base)
        self._set(ledger_id, ObjectState.COPIED)

    async def forget(self, *what: Any) -> bool:
        if len(what) == 1:
            self.deleted.append(what[0])
            return True
        if self.unforgettable:
            raise ObjectStoreUnavailableError("away")
        self._set(what[1], ObjectState.ONLY)
        return True

    def _set(self, ledger_id: int, state: ObjectState) -> None:
        found = LedgerObject(state, "ab" * 16, 0, 1, 1, self.clock.wall_ms())
        self.ledgers = [
            LogLedger(each.ledger_id, each.entries, each.bytes, each.closed_ms, found)
            if each.ledger_id == ledger_id
            else each
            for each in self.ledgers
        ]

    async def look(self) -> None:
        assert self.offload.look() is None
        await self.offload.stopped()


def closed(ledger_id: int, state: ObjectState | None = None) -> LogLedger:
    found = LedgerObject(state, "ab" * 16, 0, 1, 1, 1) if state is not None else None
    return LogLedger(ledger_id, 10, 100, 1, found)


async def test_closed_ledgers_move_and_leave_the_bookies_after_the_lag() -> None:
    world = World(closed(1), closed(2))
    await world.look()
    assert world.copied == [1, 2]
    assert world.bases[0].store == "main"
    assert world.offload.first_on_bookies() is None
    await world.look()
    assert world.deleted == []
    world.clock.advance(1_000)
    await world.look()
    assert world.deleted == [1, 2]


async def test_nothing_moves_without_a_policy_or_while_the_topic_leaves() -> None:
    world = World(closed(1), policies=Policies())
    await world.look()
    world.topic.policies, world.topic.is_leaving = MOVES, True
    await world.look()
    assert world.copied == []


async def test_a_ledger_that_a_former_owner_marked_is_deleted_though_nothing_else_is_due() -> None:
    world = World(closed(1, ObjectState.ONLY), closed(2, ObjectState.ONLY), policies=Policies())
    await world.look()
    await world.look()
    assert world.deleted == [2]


async def test_a_failure_is_shown_and_tried_again_after_a_pause_that_doubles() -> None:
    world = World(closed(1))
    world.error = ObjectStoreUnavailableError("away")
    for pause_ms in (1_000, 2_000, 3_000, 3_000):
        await world.look()
        failures = world.counts.failures
        assert "ledger 1 " in world.offload.last_error
        assert "away" in world.offload.last_error
        assert world.offload.failed_ms == world.clock.wall_ms()
        world.clock.advance(pause_ms - 1)
        await world.look()
        assert world.counts.failures == failures
        world.clock.advance(1)
    world.error = None
    await world.look()
    assert world.copied == [1]
    assert world.offload.last_error == ""


async def test_one_ledger_that_cannot_be_copied_holds_none_back_and_is_named() -> None:
    world = World(closed(1), closed(2), closed(3))
    world.bad = {1}
    await world.look()
    assert world.copied == [2, 3]
    assert "ledger 1 " in world.offload.last_error
    world.ledgers.append(closed(4))
    await world.look()  # at once, while ledger 1 waits
    assert world.copied == [2, 3, 4]
    assert world.counts.failures == 1
    world.bad = set()
    world.clock.advance(1_000)
    await world.look()
    assert world.copied == [2, 3, 4, 1]
    assert world.offload.last_error == ""


@pytest.mark.parametrize(("bad", "copied"), [({1, 2}, [3, 4, 5]), ({1, 2, 3}, [])])
async def test_a_look_ends_when_three_ledgers_failed_one_after_the_other(
    bad: set[int], copied: list[int]
) -> None:
    world = World(*map(closed, range(1, 6)))
    world.bad = bad
    await world.look()
    assert world.copied == copied
    world.clock.advance(1_000)
    await world.look()  # those that have not failed yet come first
    assert world.copied == [each for each in range(1, 6) if each not in bad]


async def test_a_ledger_that_fails_holds_back_no_other_for_ever_however_many_fail() -> None:
    world = World(*map(closed, range(1, 9)))
    world.bad = {1, 2, 3, 4, 5, 6}
    for _ in range(8):
        await world.look()
        world.clock.advance(3_000)
    assert world.copied == [7, 8]


async def test_what_is_asked_for_is_tried_though_it_failed_just_now() -> None:
    world = World(closed(1))
    world.bad = {1}
    await world.look()
    world.bad = set()
    world.offload.start(Position(9, 0))
    await world.offload.stopped()
    assert world.copied == [1]


async def test_an_object_that_cannot_be_read_back_holds_no_copy_back() -> None:
    world = World(closed(1, ObjectState.COPIED), closed(2))
    world.unforgettable = True
    world.clock.advance(1_000)
    await world.look()
    assert world.copied == [2]
    assert "ledger 1 " in world.offload.last_error


async def test_other_policies_are_tried_at_once() -> None:
    world = World(closed(1))
    world.error = ObjectStoreUnavailableError("away")
    await world.look()
    before, world.error = world.topic.policies, None
    world.topic.policies = MOVES.with_values(
        offload={"managedLedgerOffloadedReadPriority": "tiered-storage-first"}
    )
    world.offload.policies_changed(before)
    assert world.prefers
    await world.look()
    assert world.copied == [1]


def status(world: World) -> str:
    return world.offload.status.value


async def test_what_somebody_asks_for_is_moved_and_told() -> None:
    world = World(closed(1), closed(2), policies=Policies())
    world.held = asyncio.Event()
    assert status(world) == "NOT_RUN"
    world.offload.start(Position(2, 0))
    assert status(world) == "RUNNING"
    with pytest.raises(ConflictError):
        world.offload.start(Position(2, 0))
    world.held.set()
    await world.offload.stopped()
    assert status(world) == "SUCCESS"
    assert world.copied == [1]
    assert world.offload.first_on_bookies() == Position(2, 0)


async def test_what_is_asked_for_and_fails_says_why() -> None:
    world = World(closed(1))
    for error in (ObjectStoreUnavailableError("away"), LogFencedError("x"), ValueError("a bug")):
        world.error = error
        world.offload.start(Position(9, 0))
        await world.offload.stopped()
        assert status(world) == "ERROR"
        assert world.offload.last_error


async def test_a_topic_that_closes_breaks_off() -> None:
    world = World(closed(1))
    world.held = asyncio.Event()
    world.offload.start(Position(9, 0))
    await asyncio.sleep(0)
    world.offload.close()
    await world.offload.stopped()
    assert world.offload.last_error == "the topic was closed"
    world.topic.is_leaving = True
    with pytest.raises(ServiceNotReadyError):
        world.offload.start(Position(9, 0))


async def test_without_a_store_it_says_what_to_do() -> None:
    world = World(closed(1))
    offload = Offload(cast(TopicPort, world.topic), cast(ManagedLog, world), None)
    assert offload.look() is None
    assert not offload.has_store
    with pytest.raises(NotAllowedError, match="object_stores"):
        offload.start(Position(9, 0))
