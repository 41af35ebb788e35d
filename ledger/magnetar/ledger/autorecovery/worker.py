"""The worker: takes work items, has their ledgers repaired, and deletes the items.

A worker takes an item by its ledger's lock. It reads the item and its version before anything else.
If a check after the last copy finds nothing missing, it deletes the item with that version (rule
2.1). If something is left, the worker keeps the lock for a while, so that others do not spin on the
item (section 5, step 6): a short while at first, then minutes. Entries that no bookie has raise an
alarm and get the long wait at once (rule 5.6, defect A7). A change of the item or of the registered
bookies ends the wait early. The tail of an open ledger gets its grace in the same way.

A session that ends takes all locks with it: all work is abandoned before its metadata write (5.4).
Items are found by watches, not by polling (A12); the rate of taking them is bounded.

Everything is injected: store, clock, random, and the network within the client. Source:
auto-recovery, section 5.
"""

import asyncio
import random
from dataclasses import dataclass

import structlog

from magnetar.ledger.autorecovery.checker import Checker
from magnetar.ledger.autorecovery.copier import Copier
from magnetar.ledger.autorecovery.item_scan import ItemScan
from magnetar.ledger.autorecovery.postponed import Postponed, PostponedItems
from magnetar.ledger.autorecovery.repair import LedgerRepair, Repaired, RepairState
from magnetar.ledger.autorecovery.work_items import WorkItem, WorkItems, disable_path
from magnetar.ledger.autorecovery.worker_metrics import WorkerMetrics
from magnetar.ledger.autorecovery.worker_settings import WorkerSettings
from magnetar.ledger.client import LedgerClient
from magnetar.ledger.errors import LedgerError, ReplicationLockLostError
from magnetar.ledger.metadata.store import MetadataStore, SessionState, Watch, WatchEvent
from magnetar.ledger.pace import Pace
from magnetar.ledger.ports import Clock
from magnetar.ledger.replication_lock import ReplicationLock, UnreleasedLocks
from magnetar.ledger.under_replication import Range

_log = structlog.get_logger(__name__)

_STORE_RETRY_S = 1.0


@dataclass(slots=True)
class _Job:
    """The work on one ledger."""

    task: "asyncio.Task[None]"
    lock: ReplicationLock | None = None


class Worker:
    """The re-replication worker; one per process is enough. `await start()`, later `await
    stop()`."""

    def __init__(
        self,
        client: LedgerClient,
        store: MetadataStore,
        *,
        clock: Clock,
        random: random.Random,
        holder: str,
        settings: WorkerSettings | None = None,
        root: str = "/ledgers",
    ) -> None:
        """Make a worker that does not run yet.

        Args:
            client: started; the worker does not close it.
            holder: name of this process in its locks, for operators.
        """
        self._settings = settings = settings or WorkerSettings()
        self._store = store
        self._client = client
        self._clock = clock
        self._holder = holder
        self._root = root
        self.metrics = WorkerMetrics()
        self.items = WorkItems(store, clock=clock, random=random, root=root)
        self.repair = make_repair(client, clock=clock, settings=settings, metrics=self.metrics)
        self._news = asyncio.Event()
        self._scan = ItemScan(
            self.items,
            store,
            clock=clock,
            random=random,
            root=root,
            rescan_s=settings.rescan_s,
            pause_s=settings.scan_pause_s,
            on_news=self._news.set,
        )
        self._postponed = PostponedItems(
            store, clock=clock, root=root, settings=settings, on_news=self._news.set
        )
        self._pace = Pace(settings.items_per_s_max)
        self._found: list[int] = []
        self._unrecorded: set[int] = set()
        """Ledgers whose losses have changed since their records were written."""
        self._jobs: dict[int, _Job] = {}
        self._unreleased = UnreleasedLocks()
        self._watches: list[Watch] = []
        self._is_disabled: bool | None = None
        """None if the worker must read it again."""
        self._is_stopping = False
        self._main: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Begin to take items. If the store does not answer, wait for it instead of raising."""
        assert self._main is None, "started twice"
        self._watches = [
            self._store.on_session_change(self._on_session_change),
            self._store.watch(disable_path(self._root), self._on_disable_event),
        ]
        self._client.registry.on_change(self._on_bookies_changed)
        self._main = asyncio.get_running_loop().create_task(self._run(), name="recovery-worker")

    @property
    def is_alive(self) -> bool:
        """Whether the worker looks for work, even if it is switched off."""
        return self._main is not None and not self._main.done()

    async def stop(self) -> None:
        """Take no new items, abandon the work under way, and release the locks. Finished copies
        stay; the items remain for other workers."""
        self._is_stopping = True
        for watch in self._watches:
            watch.close()
        self._scan.close()
        tasks = [job.task for job in self._jobs.values()]
        if self._main is not None:
            tasks.append(self._main)
        for task in tasks:
            task.cancel()
        try:
            async with asyncio.timeout(self._settings.stop_timeout_s):
                await asyncio.gather(*tasks, return_exceptions=True)
                for lock in self._postponed.clear():
                    await self._unreleased.release(lock)
        except TimeoutError:
            _log.warning("replication_locks_left_to_the_session")

    # Events

    def _on_session_change(self, state: SessionState) -> None:
        if state is SessionState.EXPIRED:
            # The locks are gone, and others may have taken them.
            for job in self._jobs.values():
                job.task.cancel()
                self.metrics.items_aborted += 1
            self._postponed.clear()
            self._found = []
            self._unrecorded.clear()
            self.metrics.clear_losses()
        self._is_disabled = None
        self._scan.look_again()
        self._news.set()

    def _on_disable_event(self, event: WatchEvent) -> None:
        self._is_disabled = None
        self._news.set()

    def _on_bookies_changed(self) -> None:
        if not self._is_stopping:
            self._postponed.on_bookies_changed()

    # The loop

    async def _run(self) -> None:
        while True:
            try:
                await self._turn()
            except LedgerError as error:
                _log.warning("recovery_worker_waits", error=str(error))
                await asyncio.sleep(_STORE_RETRY_S)
            except Exception:  # noqa: BLE001 - a defect must not end the repair of ledgers
                _log.exception("recovery_worker_turn_failed")
                await asyncio.sleep(_STORE_RETRY_S)

    async def _turn(self) -> None:
        """Start one ledger, or find some, or wait."""
        self._news.clear()
        self.metrics.items_waiting = len(self._postponed)
        if self._is_disabled is None:
            self._is_disabled = await self.items.is_disabled()
            self.metrics.disabled = int(self._is_disabled)
        if self._is_disabled or len(self._jobs) >= self._settings.ledgers_at_once:
            await self._wait(None if self._jobs else self._settings.rescan_s)
            return
        now_s = self._clock.monotonic_s()
        if (postponed := self._postponed.take_due(now_s)) is not None:
            await self._start(postponed.ledger_id, postponed)
        elif self._found:
            ledger_id = self._found.pop()
            if not self._is_ours(ledger_id):
                await self._start(ledger_id, None)
        elif self._scan.due_at_s <= now_s:
            await self._unreleased.release_all()
            self._found = await self._scan.find(self._is_ours)
            self._found += await self._stale_records()
            self.metrics.scans = self._scan.scans
        else:
            due_s = min(self._scan.due_at_s, self._postponed.due_at_s)
            await self._wait(max(0.0, due_s - now_s))

    async def _stale_records(self) -> list[int]:
        """Return the ledgers with a record of lost entries, but without an item: taking one of
        them removes its record."""
        if not (recorded := await self.items.lost_ids()):
            return []
        # Listed after the records: an item always precedes the record of its losses.
        marked = set(await self.items.ids())
        return [each for each in recorded if each not in marked and not self._is_ours(each)]

    async def _wait(self, timeout_s: float | None) -> None:
        try:
            async with asyncio.timeout(timeout_s):
                await self._news.wait()
        except TimeoutError:
            pass  # something is due

    def _is_ours(self, ledger_id: int) -> bool:
        return ledger_id in self._jobs or ledger_id in self._postponed

    async def _start(self, ledger_id: int, postponed: Postponed | None) -> None:
        wait_s = self._pace.take(1, self._clock.monotonic_s())
        task = asyncio.get_running_loop().create_task(
            self._work(ledger_id, postponed), name=f"repair-ledger-{ledger_id}"
        )
        self._jobs[ledger_id] = _Job(task, postponed.lock if postponed else None)
        self.metrics.items_in_work = len(self._jobs)
        task.add_done_callback(lambda done: self._on_done(ledger_id, done))
        if wait_s:
            await asyncio.sleep(wait_s)

    def _on_done(self, ledger_id: int, task: "asyncio.Task[None]") -> None:
        del self._jobs[ledger_id]
        self.metrics.items_in_work = len(self._jobs)
        self._news.set()
        if not task.cancelled() and (error := task.exception()) is not None:
            asyncio.get_running_loop().call_exception_handler(
                {"message": f"the repair of ledger {ledger_id} broke", "exception": error}
            )

    # One item

    async def _work(self, ledger_id: int, postponed: Postponed | None) -> None:
        """Make one attempt at one item, from taking the lock to its release."""
        job = self._jobs[ledger_id]
        is_kept = False
        try:
            if job.lock is None:
                job.lock = await self.items.take_lock(
                    ledger_id, self._holder, unclear=self._unreleased
                )
            if job.lock is None:
                return  # another worker was faster
            is_kept = await self._work_locked(ledger_id, job.lock, postponed)
        except ReplicationLockLostError as error:
            self.metrics.items_aborted += 1
            _log.warning("repair_aborted", ledger_id=ledger_id, error=str(error))
        except LedgerError as error:
            # Mostly because the store does not answer.
            if job.lock is not None:
                failed = Repaired(RepairState.FAILED, str(error), type(error).__name__)
                is_kept = self._postpone(ledger_id, job.lock, failed, postponed)
        finally:
            if ledger_id not in self._postponed:
                self._drop_losses(ledger_id)
            if job.lock is not None and not is_kept:
                await self._unreleased.release(job.lock)

    async def _work_locked(
        self, ledger_id: int, lock: ReplicationLock, postponed: Postponed | None
    ) -> bool:
        """Repair the ledger under its lock; return whether to keep the lock for another attempt."""
        item = await self.items.read(ledger_id)
        if item is None:
            # Another worker finished between the listing and the lock; or only a directory is left.
            await self.items.remove_directories(ledger_id)
            await self._forget(ledger_id)
            return False
        self.metrics.items_taken += 1
        now_s = self._clock.monotonic_s()
        may_close = postponed is not None and postponed.is_grace_over(
            now_s, self._settings.open_ledger_grace_s
        )
        repaired = await self.repair.repair(
            ledger_id, item.missing, may_close=may_close, holds_lock=lock.is_held
        )
        await self._note_loss(ledger_id, repaired)
        if repaired.state in (RepairState.WHOLE, RepairState.DELETED):
            return await self._finish(item, repaired)
        return self._postpone(ledger_id, lock, repaired, postponed)

    async def _finish(self, item: WorkItem, repaired: Repaired) -> bool:
        is_deleted = repaired.state is RepairState.DELETED
        self.metrics.ledgers_deleted += is_deleted
        if await self.items.delete(item):
            self.metrics.items_finished += 1
            _log.info("ledger_is_replicated", ledger_id=item.ledger_id, deleted=is_deleted)
        else:
            self.metrics.items_changed += 1
            self._found.append(item.ledger_id)
        await self._forget(item.ledger_id)
        return False

    async def _forget(self, ledger_id: int) -> None:
        """Clear all records of losses: the ledger is whole, or gone."""
        self._drop_losses(ledger_id)
        # Read now, under the lock: another worker may have recorded a loss since the last listing.
        if await self.items.is_lost(ledger_id):
            await self.items.note_lost(ledger_id, [])

    def _drop_losses(self, ledger_id: int) -> None:
        """Stop showing losses of a ledger: it has none, or is left to other workers, which repair
        it without this worker's knowledge."""
        self.metrics.set_lost(ledger_id, [])
        self.metrics.set_unreachable(ledger_id, "")
        self._unrecorded.discard(ledger_id)

    def _postpone(
        self, ledger_id: int, lock: ReplicationLock, repaired: Repaired, before: Postponed | None
    ) -> bool:
        """Keep the item for later; return whether the lock is kept with it."""
        metrics = self.metrics
        metrics.items_deferred += 1
        metrics.failures[repaired.error] = metrics.failures.get(repaired.error, 0) + 1
        postponed = self._postponed.add(
            ledger_id,
            lock,
            is_open=repaired.state is RepairState.OPEN,
            is_lost=bool(repaired.lost),
            before=before,
        )
        _log.warning(
            "ledger_repair_postponed",
            ledger_id=ledger_id,
            reason=repaired.reason,
            attempts=postponed.failures,
            delay_s=round(postponed.due_s - self._clock.monotonic_s(), 3),
        )
        return postponed.lock is not None

    async def _note_loss(self, ledger_id: int, repaired: Repaired) -> None:
        """Raise an alarm about entries that no bookie has, and record them for operators."""
        if repaired.is_broken_off:
            return  # what an earlier attempt found out still counts
        lost = list(repaired.lost)
        reason = repaired.reason if repaired.is_unreachable else ""
        self.metrics.set_unreachable(ledger_id, reason)
        if self.metrics.set_lost(ledger_id, lost):
            self._unrecorded.add(ledger_id)
            if lost:
                _log.error("entries_are_lost", ledger_id=ledger_id, ranges=lost)
        await self._record_loss(ledger_id, lost)

    async def _record_loss(self, ledger_id: int, lost: list[Range]) -> None:
        """Write the record of lost entries if it has changed. The alarm comes before: if the store
        does not answer, the next attempt writes the record."""
        if ledger_id in self._unrecorded:
            await self.items.note_lost(ledger_id, lost)
            self._unrecorded.discard(ledger_id)


def make_repair(
    client: LedgerClient,
    *,
    clock: Clock,
    settings: WorkerSettings,
    metrics: WorkerMetrics,
) -> LedgerRepair:
    """Make the parts that repair ledgers, over a client that is started."""
    checker = make_checker(client, settings)
    copier = Copier(
        client.channels,
        facts_of=client.fetcher.facts_of,
        clock=clock,
        settings=settings,
        metrics=metrics,
        on_bad_replica=client.fetcher.note_bad,
    )
    return LedgerRepair(client, checker, copier, settings=settings, metrics=metrics)


def make_checker(client: LedgerClient, settings: WorkerSettings | None = None) -> Checker:
    """Make the checker of replicas, for workers and audits."""
    settings = settings or WorkerSettings()
    return Checker(
        client.channels,
        client.registry,
        list_bitmap_bytes=settings.list_bitmap_bytes,
        read_bytes=settings.copy_read_bytes,
    )
