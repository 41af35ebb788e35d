"""Estimates of what has to be copied, and the values that operators write."""

import random
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from magnetar.ledger.autorecovery.controls import DELAY_S_MAX, Check, Controls
from magnetar.ledger.autorecovery.ledger_scan import PacedReads
from magnetar.ledger.autorecovery.status import (
    RecoveryStatus,
    bytes_to_copy,
    lock_holder,
    report_status,
)
from magnetar.ledger.autorecovery.work_items import WorkItems, lost_path
from magnetar.ledger.errors import InvalidLedgerMetadataError
from magnetar.ledger.ledger_manager import LedgerManager
from magnetar.ledger.ledger_metadata import Fragment, LedgerMetadata, LedgerState
from magnetar.ledger.metadata.store import MetadataStore
from magnetar.ledger.metadata.url import open_store
from magnetar.ledger.replication_lock import UnreleasedLocks
from magnetar.ledger.system import SystemClock
from magnetar.ledger.under_replication import EVERYTHING, Missing, item_path

CLOSED, OPEN = LedgerState.CLOSED, LedgerState.OPEN


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[MetadataStore]:
    store = await open_store(f"embedded:{tmp_path / 'metadata.db'}")
    yield store
    await store.close()


async def status_of(store: MetadataStore) -> RecoveryStatus:
    clock = SystemClock()
    manager = LedgerManager(store, random=random.Random(1), clock=clock)
    return await report_status(
        store,
        WorkItems(store, clock=clock, random=random.Random(1)),
        PacedReads(manager, clock, per_s_max=1000, at_once_max=4),
        now_ms=clock.wall_ms(),
        items_max=100,
    )


def ledger(
    *fragments: Fragment, write_quorum: int, last: int, length: int, state: LedgerState = CLOSED
) -> LedgerMetadata:
    return LedgerMetadata(
        ledger_id=7,
        ensemble_size=len(fragments[0].bookies),
        write_quorum=write_quorum,
        ack_quorum=1,
        state=state,
        last_entry_id=last,
        length=length,
        ensembles=fragments,
        created_ms=0,
        creation_token=1,
    )


ALL = Fragment(0, ("b1", "b2", "b3"))


@pytest.mark.parametrize(
    ("metadata", "missing", "expected"),
    [
        (ledger(ALL, write_quorum=3, last=9, length=1000), {"b1": [EVERYTHING]}, 1000),
        (ledger(ALL, write_quorum=3, last=9, length=1000), {"b1": [(2, 3), EVERYTHING]}, 1000),
        (ledger(ALL, write_quorum=2, last=8, length=900), {"b1": [EVERYTHING]}, 600),
        (ledger(ALL, write_quorum=3, last=9, length=1000), {"b2": [(0, 3)], "b3": [(9, 9)]}, 500),
        (ledger(ALL, write_quorum=3, last=9, length=1000), {"b4": [EVERYTHING]}, 0),
        (
            ledger(ALL, Fragment(4, ("b4", "b2", "b3")), write_quorum=3, last=9, length=1000),
            {"b1": [EVERYTHING]},
            400,
        ),
        (ledger(ALL, write_quorum=3, last=-1, length=0), {"b1": [EVERYTHING]}, 0),
        (ledger(ALL, write_quorum=3, last=-1, length=0, state=OPEN), {"b1": [EVERYTHING]}, 0),
    ],
)
def test_the_bytes_to_copy_are_those_that_belong_on_the_bookies(
    metadata: LedgerMetadata, missing: Missing, expected: int
) -> None:
    assert bytes_to_copy(metadata, missing) == expected


async def test_the_status_of_an_empty_cluster(store: MetadataStore) -> None:
    status = await status_of(store)
    assert (status.auditor, status.is_enabled, status.delay_s) == (None, True, None)
    assert (status.bookies, status.items.count, status.items.items) == ((), 0, ())
    assert set(status.last_run_ms.values()) == {None}


async def test_the_status_tells_lost_bookies_from_registered_ones(store: MetadataStore) -> None:
    for bookie_id in ("b1", "b2", "b3"):
        await store.create(f"/ledgers/cookies/{bookie_id}", b"a cookie")
    await store.create("/ledgers/available/b1")
    await store.create("/ledgers/available/readonly/b2")
    status = await status_of(store)
    assert {each.bookie_id: each.state for each in status.bookies} == {
        "b1": "writable",
        "b2": "readonly",
        "b3": "lost",
    }


async def test_an_item_of_a_ledger_that_is_gone_or_not_understood_is_listed_all_the_same(
    store: MetadataStore,
) -> None:
    items = WorkItems(store, clock=SystemClock(), random=random.Random(1))
    await items.publish(5, {"b1": [EVERYTHING]})
    await store.create(item_path("/ledgers", 6), b"not ours")
    lock = await items.take_lock(5, "worker-9", unclear=UnreleasedLocks())
    assert lock is not None
    status = await status_of(store)
    assert status.items.count == 2
    assert [each.ledger_id for each in status.items.items] == [5]
    assert status.items.in_work == 1
    assert len(status.items.unreadable) == 1
    assert await lock_holder(store, 5) == "worker-9"
    assert await lock_holder(store, 6) == ""


async def test_an_unreadable_record_of_lost_entries_hides_no_other(store: MetadataStore) -> None:
    items = WorkItems(store, clock=SystemClock(), random=random.Random(1))
    await items.note_lost(5, [(2, 3)])
    await store.create(lost_path("/ledgers", 6), b"not ours")
    await store.create(lost_path("/ledgers", 7), b'{"format":1}')
    status = await status_of(store)
    assert status.items.lost == {5: [(2, 3)], 6: [], 7: []}
    assert len(status.items.unreadable) == 2


async def test_a_delay_is_kept_and_may_be_left_to_the_settings_again(store: MetadataStore) -> None:
    controls = Controls(store)
    assert await controls.read_delay() == (None, None)
    await controls.write_delay(300.0)
    assert await controls.read_delay() == (300.0, 0)
    await controls.ask_for_audit()
    assert await controls.read_delay() == (300.0, 1)
    await controls.write_delay(None)
    assert await controls.read_delay() == (None, 2)


@pytest.mark.parametrize("delay_s", [-1.0, DELAY_S_MAX + 1, float("nan")])
async def test_a_delay_out_of_bounds_is_refused(store: MetadataStore, delay_s: float) -> None:
    with pytest.raises(ValueError, match="delay"):
        await Controls(store).write_delay(delay_s)


@pytest.mark.parametrize(
    "value",
    [
        b"300",
        b'{"format":2,"delay_s":300}',
        b'{"format":1,"delay_s":-1}',
        b'{"format":1,"delay_s":"300"}',
        b'{"format":1,"delay_s":300,"by":"me"}',
        b'{"format":1}',
        b"\xff",
    ],
)
async def test_a_delay_that_is_not_understood_is_refused_and_never_overwritten(
    store: MetadataStore, value: bytes
) -> None:
    controls = Controls(store)
    await store.create(controls.delay_path, value)
    for call in (controls.read_delay, controls.ask_for_audit):
        with pytest.raises(InvalidLedgerMetadataError, match="lostBookieRecoveryDelay"):
            await call()
    with pytest.raises(InvalidLedgerMetadataError):
        await controls.write_delay(1.0)
    assert (await store.get(controls.delay_path)).value == value


async def test_another_layout_of_the_items_is_refused(store: MetadataStore) -> None:
    controls = Controls(store)
    await controls.claim_layout()
    await controls.claim_layout()
    path = "/ledgers/underreplication/LAYOUT"
    version = (await store.get(path)).version
    await store.set(path, b'{"format":1,"name":"FLAT","version":1}', version=version)
    with pytest.raises(InvalidLedgerMetadataError, match="LAYOUT"):
        await controls.claim_layout()


async def test_the_time_of_a_check_is_kept(store: MetadataStore) -> None:
    controls = Controls(store)
    assert await controls.last_run_ms(Check.REPLICAS) is None
    for now_ms in (5, 9):
        await controls.note_run(Check.REPLICAS, now_ms=now_ms)
        assert await controls.last_run_ms(Check.REPLICAS) == now_ms
    assert await controls.last_run_ms(Check.ALL_LEDGERS) is None
