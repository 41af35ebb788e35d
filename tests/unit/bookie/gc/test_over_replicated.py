"""Ledgers that other bookies have: what may be deleted, and when not (B12)."""

import random
from collections.abc import Sequence

import pytest

from magnetar.bookie.errors import ForeignMetadataError
from magnetar.bookie.gc.over_replicated import OverReplicatedLedgers, is_surplus
from magnetar.bookie.metrics import GcMetrics
from magnetar.bookie.requests.fencing import LedgerTable
from magnetar.bookie.storage import LedgerState as LocalState
from magnetar.ledger.errors import MetadataUnavailableError, UnknownOutcomeError
from magnetar.ledger.ledger_metadata import LedgerState
from magnetar.ledger.replication_lock import ReplicationLock, lock_path
from magnetar.ledger.system import SystemClock
from tests.bookie_parts import KEY, MemoryStorage
from tests.garbage import Ledgers, metadata_calls, metadata_of, store_of_cluster

STATE = LocalState(KEY, fenced=True, last_add_confirmed=-1)
US = "b1"
OTHERS = ("b2", "b3")


class Bookie:
    """Bookie b1 with ledgers 0 to 2, of which it should have 0 only."""

    def __init__(self, state: LedgerState = LedgerState.CLOSED) -> None:
        self.storage = MemoryStorage()
        self.cluster = Ledgers()
        self.store = store_of_cluster()
        self.metrics = GcMetrics()
        self.collector = OverReplicatedLedgers(
            self.storage,
            LedgerTable(self.storage),
            self.store,
            bookie_id=US,
            calls=metadata_calls(self.store),
            clock=SystemClock(),
            random=random.Random(1),
            metrics=self.metrics,
        )
        self.place(0, [US, *OTHERS])
        self.place(1, OTHERS, state)
        self.place(2, OTHERS, state)
        for ledger_id in range(3):
            self.storage.put_state(ledger_id, STATE)

    def place(
        self, ledger_id: int, bookies: Sequence[str], state: LedgerState = LedgerState.CLOSED
    ) -> None:
        self.cluster.metadata[ledger_id] = metadata_of(ledger_id, bookies=bookies, state=state)

    async def collect(self) -> list[int]:
        await self.collector.collect(self.cluster)
        return self.storage.ledger_ids()

    @property
    def locks(self) -> list[str]:
        return [path for path in self.store.nodes if "/locks/" in path]


async def test_closed_ledgers_of_others_are_deleted_durably() -> None:
    bookie = Bookie()
    assert await bookie.collect() == [0]
    assert (bookie.metrics.surplus_ledgers, bookie.storage.flushes) == (2, 1)
    assert bookie.locks == []


@pytest.mark.parametrize("state", [LedgerState.OPEN, LedgerState.IN_RECOVERY])
async def test_only_closed_ledgers_are_deleted(state: LedgerState) -> None:
    bookie = Bookie(state)
    assert await bookie.collect() == [0, 1, 2]


def test_a_bookie_of_any_fragment_is_needed() -> None:
    metadata = metadata_of(1, bookies=OTHERS)
    assert is_surplus(metadata, US)
    assert not is_surplus(metadata, OTHERS[1])


async def test_b12_a_ledger_that_is_being_re_replicated_stays() -> None:
    bookie = Bookie()
    bookie.store.nodes[lock_path("/ledgers", 1)] = b"worker"
    assert await bookie.collect() == [0, 1]
    assert bookie.store.nodes[lock_path("/ledgers", 1)] == b"worker"


async def test_b12_a_ledger_that_was_given_back_before_the_lock_stays() -> None:
    """A worker copied it here and named us between our look and our lock."""
    bookie = Bookie()

    def give_back(ledger_id: int) -> None:
        if ledger_id == 1 and bookie.cluster.reads.count(1) == 2:
            assert lock_path("/ledgers", 1) in bookie.store.nodes
            bookie.place(1, [US, "b2"])

    bookie.cluster.on_read = give_back
    assert await bookie.collect() == [0, 1]
    assert bookie.locks == []


async def test_b12_a_lock_that_was_lost_with_its_session_deletes_nothing() -> None:
    bookie = Bookie()

    def lose(ledger_id: int) -> None:
        bookie.store.nodes.pop(lock_path("/ledgers", ledger_id), None)

    bookie.cluster.on_read = lose
    assert await bookie.collect() == [0, 1, 2]


async def test_b12_a_lock_that_is_another_s_by_now_is_left_alone() -> None:
    bookie = Bookie()

    def lose(ledger_id: int) -> None:
        if lock_path("/ledgers", ledger_id) in bookie.store.nodes:
            bookie.store.nodes[lock_path("/ledgers", ledger_id)] = b"worker"

    bookie.cluster.on_read = lose
    assert await bookie.collect() == [0, 1, 2]
    assert len(bookie.locks) == 2


async def test_ledgers_without_metadata_and_without_answer_stay() -> None:
    bookie = Bookie()
    del bookie.cluster.metadata[1]
    bookie.cluster.failing = {2}
    assert await bookie.collect() == [0, 1, 2]
    assert bookie.metrics.unconfirmed_ledgers == 1


async def test_the_metadata_of_another_cluster_deletes_nothing() -> None:
    bookie = Bookie()
    bookie.store.nodes["/ledgers/INSTANCEID"] = b"f" * 32
    with pytest.raises(ForeignMetadataError):
        await bookie.collect()
    assert bookie.storage.ledger_ids() == [0, 1, 2]


async def test_a_lock_that_may_have_been_taken_is_given_back_later(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bookie = Bookie()
    create, is_held = bookie.store.create, ReplicationLock.is_held
    failures = [MetadataUnavailableError("no contact")]

    async def lose_reply(path: str, value: bytes = b"", *, ephemeral: bool = False) -> str:
        await create(path, value, ephemeral=ephemeral)
        raise UnknownOutcomeError("the reply was lost")

    async def fail_once(lock: ReplicationLock) -> bool:
        if failures:
            raise failures.pop()
        return await is_held(lock)

    monkeypatch.setattr(bookie.store, "create", lose_reply)
    monkeypatch.setattr(ReplicationLock, "is_held", fail_once)
    assert await bookie.collect() == [0, 1]
    assert bookie.locks == []


async def test_a_lock_that_could_not_be_given_back_is_given_back_later(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bookie = Bookie()
    release = ReplicationLock.release
    failures = [MetadataUnavailableError("no contact")]

    async def fail_once(lock: ReplicationLock) -> None:
        if failures:
            raise failures.pop()
        await release(lock)

    monkeypatch.setattr(ReplicationLock, "release", fail_once)
    assert await bookie.collect() == [0]
    assert bookie.locks == []
