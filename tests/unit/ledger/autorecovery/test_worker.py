"""A worker's locks and records after attempts that failed, step by step (`worker.py`)."""

import asyncio
import random
from types import SimpleNamespace
from typing import cast

import pytest

from magnetar.ledger.autorecovery import worker
from magnetar.ledger.autorecovery.repair import LedgerRepair, Repaired, RepairState
from magnetar.ledger.autorecovery.work_items import lost_path
from magnetar.ledger.autorecovery.worker import Worker
from magnetar.ledger.autorecovery.worker_settings import WorkerSettings
from magnetar.ledger.client import LedgerClient
from magnetar.ledger.errors import LedgerError, MetadataUnavailableError
from magnetar.ledger.metadata.store import SessionState
from magnetar.ledger.replication_lock import lock_path
from magnetar.ledger.under_replication import EVERYTHING, Missing
from tests.dictionary_store import DictionaryStore
from tests.waiting import until

UNAVAILABLE = MetadataUnavailableError("no contact")
WHOLE = Repaired(RepairState.WHOLE)
LOST = Repaired(RepairState.FAILED, "no bookie has them", "DataLoss", lost=((3, 4),))
BROKEN_OFF = Repaired(RepairState.FAILED, "contended", "ContendedError", is_broken_off=True)
UNREACHABLE = Repaired(RepairState.FAILED, "only on b1", "NotCopied", is_unreachable=True)


class Clock:
    """Time moves only when a test says so."""

    def __init__(self) -> None:
        self.now_s = 1000.0

    def monotonic_s(self) -> float:
        return self.now_s

    def boot_s(self) -> float:
        return self.now_s

    def wall_ms(self) -> int:
        return 0


class FailingStore(DictionaryStore):
    """A store that does not answer the next writes of some nodes."""

    def __init__(self) -> None:
        super().__init__()
        self.unanswered: list[tuple[str, str]] = []
        """Calls, by name and path."""
        self.defects: list[Exception] = []
        """Raised by the next questions whether a node exists."""

    async def exists(self, path: str) -> int | None:
        if self.defects:
            raise self.defects.pop()
        return await super().exists(path)

    async def create(
        self, path: str, value: bytes = b"", *, ephemeral: bool = False, sequential: bool = False
    ) -> str:
        self._answer("create", path)
        return await super().create(path, value, ephemeral=ephemeral, sequential=sequential)

    async def delete(self, path: str, *, version: int | None = None) -> None:
        self._answer("delete", path)
        await super().delete(path, version=version)

    def _answer(self, call: str, path: str) -> None:
        if (call, path) in self.unanswered:
            self.unanswered.remove((call, path))
            raise UNAVAILABLE


class Parts:
    """A worker whose loop the test runs, and which repairs as the test says."""

    def __init__(self, *, deferred_items_max: int = 10, store: FailingStore | None = None) -> None:
        self.store, self.clock = store or FailingStore(), Clock()
        self.repaired: Repaired | LedgerError = WHOLE
        self.outcomes: dict[int, Repaired] = {}
        """Outcomes of the ledgers that do not get `repaired`."""
        client = SimpleNamespace(
            channels=None,
            fetcher=SimpleNamespace(facts_of=None, note_bad=None),
            registry=None,
            parts=None,
            manager=None,
        )
        self.worker = Worker(
            cast(LedgerClient, client),
            self.store,
            clock=self.clock,
            random=random.Random(1),
            holder="worker",
            # The items are listed once: all further attempts are at postponed ones.
            settings=WorkerSettings(
                deferred_items_max=deferred_items_max,
                retry_delay_s_max=10,
                scan_pause_s=60,
                rescan_s=3600,
            ),
        )
        self.worker.repair = cast(LedgerRepair, self)

    async def repair(self, ledger_id: int, reported: Missing, **_: object) -> Repaired:
        if isinstance(self.repaired, LedgerError):
            raise self.repaired
        return self.outcomes.get(ledger_id, self.repaired)

    async def publish(self, *ledger_ids: int) -> None:
        for ledger_id in ledger_ids:
            await self.worker.items.publish(ledger_id, {"bookie": [EVERYTHING]})

    async def attempt_all(self) -> None:
        """Make one attempt at each item that the worker finds, or has postponed."""
        worker = self.worker
        if len(worker._postponed):
            self.clock.now_s += worker._settings.retry_delay_s_max
        while worker._found or min(self.due_at_s) <= self.clock.now_s:
            await worker._turn()
            await asyncio.gather(*(each.task for each in worker._jobs.values()))

    @property
    def due_at_s(self) -> tuple[float, float]:
        """When the next listing and the next attempt are due."""
        return self.worker._scan.due_at_s, self.worker._postponed.due_at_s

    @property
    def losses_shown(self) -> tuple[int, int]:
        """The gauges of ledgers with lost, and with unreachable entries."""
        return self.worker.metrics.lost_ledgers, self.worker.metrics.unreachable_ledgers

    def lost(self, ledger_id: int) -> bytes | None:
        """The record of the lost entries of a ledger."""
        return self.store.nodes.get(lost_path("/ledgers", ledger_id))


async def test_locks_beyond_the_bound_are_released_when_an_attempt_ends_with_an_error() -> None:
    parts = Parts(deferred_items_max=1)
    await parts.publish(1, 2, 3)
    parts.repaired = UNAVAILABLE
    await parts.attempt_all()
    assert len(await parts.worker.items.locked_ids()) == 1
    parts.repaired = WHOLE
    await parts.attempt_all()
    assert await parts.worker.items.ids() == []
    assert await parts.worker.items.locked_ids() == set()


@pytest.mark.parametrize("call", ["delete", "create"])
async def test_lost_entries_are_recorded_by_a_later_attempt_if_the_store_did_not_answer(
    call: str,
) -> None:
    parts = Parts()
    await parts.publish(7)
    parts.repaired = LOST
    parts.store.unanswered = [(call, lost_path("/ledgers", 7))]
    await parts.attempt_all()
    assert parts.worker.metrics.lost_ledgers == 1, "the alarm does not wait for the record"
    assert parts.lost(7) is None
    await parts.attempt_all()
    record = parts.lost(7)
    assert record is not None
    assert b"[[3,4]]" in record


async def test_the_record_of_a_ledger_that_is_whole_again_is_removed_by_a_later_attempt() -> None:
    parts = Parts()
    await parts.publish(7)
    parts.repaired = LOST
    await parts.attempt_all()
    assert parts.lost(7) is not None
    parts.repaired = WHOLE
    parts.store.unanswered = [("delete", lost_path("/ledgers", 7))]
    await parts.attempt_all()
    await parts.attempt_all()
    assert parts.lost(7) is None
    assert parts.worker.metrics.lost_ledgers == 0


async def test_the_worker_goes_on_after_an_unforeseen_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(worker, "_STORE_RETRY_S", 0.0)
    parts = Parts()
    await parts.publish(7)
    parts.store.defects = [ValueError("a bug")]
    running = asyncio.create_task(parts.worker._run())
    await until(lambda: parts.worker.metrics.items_finished == 1)
    assert not parts.store.defects
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running


def two_workers(*, deferred_items_max: int = 10) -> tuple[Parts, Parts]:
    """Two workers of one cluster; the bound is that of the first one."""
    first = Parts(deferred_items_max=deferred_items_max)
    return first, Parts(store=first.store)


async def test_a_worker_whose_session_ended_shows_no_losses_of_ledgers_that_others_repair() -> None:
    first, second = two_workers()
    await first.publish(7, 8)
    first.outcomes = {7: UNREACHABLE, 8: LOST}
    await first.attempt_all()
    assert first.losses_shown == (1, 1)
    first.worker._on_session_change(SessionState.EXPIRED)
    for ledger_id in (7, 8):
        await first.store.delete(lock_path("/ledgers", ledger_id))
    await second.attempt_all()
    assert await second.worker.items.ids() == []
    assert first.losses_shown == (0, 0)
    assert first.lost(8) is None


async def test_a_worker_shows_no_losses_of_a_ledger_whose_lock_another_worker_took() -> None:
    first, second = two_workers(deferred_items_max=1)
    await first.publish(6, 7)
    first.repaired = second.repaired = UNREACHABLE
    await first.attempt_all()
    assert first.losses_shown == (0, 2), "one of them waits for its next attempt without its lock"
    await second.attempt_all()
    await first.attempt_all()
    assert (first.losses_shown, second.losses_shown) == ((0, 1), (0, 1))


async def test_a_loss_recorded_after_the_last_listing_is_forgotten_when_the_ledger_is_whole() -> (
    None
):
    first, second = two_workers()
    await first.publish(7)
    await second.worker._turn()
    assert second.worker._found == [7]
    first.repaired = LOST
    await first.attempt_all()
    await first.store.delete(lock_path("/ledgers", 7))  # the first worker has stopped
    await second.attempt_all()
    assert await second.worker.items.ids() == []
    assert second.lost(7) is None


async def test_a_listing_finds_records_of_losses_that_no_item_names() -> None:
    first, second = two_workers()
    await first.publish(6)
    first.repaired = LOST
    await first.attempt_all()
    await second.worker.items.note_lost(7, [(3, 4)])
    await second.attempt_all()
    assert second.lost(7) is None, "nothing would ever remove it"
    assert second.lost(6) is not None, "its item is another worker's"


async def test_an_attempt_that_breaks_off_ends_no_alarm_about_losses() -> None:
    parts = Parts()
    await parts.publish(7, 8)
    parts.outcomes = {7: LOST, 8: UNREACHABLE}
    await parts.attempt_all()
    parts.outcomes = {7: BROKEN_OFF, 8: BROKEN_OFF}
    await parts.attempt_all()
    assert parts.losses_shown == (1, 1)
    assert parts.lost(7) is not None
    parts.outcomes = {}
    await parts.attempt_all()
    assert parts.losses_shown == (0, 0)
    assert parts.lost(7) is None
