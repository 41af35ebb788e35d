"""Ledgers that could not be repaired yet, and when they are tried again.

Their locks are kept for the time, so that no other worker spins on them. The delay doubles with
each of the first few failures, and is minutes after that. It is minutes at once if entries are
lost: time alone does not bring them back. A ledger whose open tail is in trouble waits for its
writer's grace. A change of the work item or of the registered bookies ends a wait, though never
before `retry_delay_s` has passed since the attempt. Source: auto-recovery, sections 5 and 6.
"""

import heapq
from collections.abc import Callable
from dataclasses import dataclass

from magnetar.ledger.autorecovery.worker_settings import WorkerSettings
from magnetar.ledger.backoff import backoff
from magnetar.ledger.metadata.store import MetadataStore, Watch, WatchEvent
from magnetar.ledger.ports import Clock
from magnetar.ledger.replication_lock import ReplicationLock
from magnetar.ledger.under_replication import item_path

_WATCHES_MAX = 1000
"""Most items that are watched for changes; changes of others are noticed when they are due."""


@dataclass(slots=True)
class Postponed:
    """One ledger that waits."""

    ledger_id: int
    lock: ReplicationLock | None
    """None if too many ledgers wait: the lock must be taken anew."""
    due_s: float
    attempted_s: float
    failures: int
    open_since_s: float | None
    """Time since which its open tail is known to be in trouble; None if it is not."""
    watch: Watch | None = None

    def is_grace_over(self, now_s: float, grace_s: float) -> bool:
        """Return whether the writer had its time to notice."""
        return self.open_since_s is not None and now_s - self.open_since_s >= grace_s


class PostponedItems:
    """The waiting ledgers of one worker."""

    def __init__(
        self,
        store: MetadataStore,
        *,
        clock: Clock,
        root: str,
        settings: WorkerSettings,
        on_news: Callable[[], None],
    ) -> None:
        self._store = store
        self._clock = clock
        self._root = root
        self._settings = settings
        self._on_news = on_news
        self._waiting: dict[int, Postponed] = {}
        self._order: list[tuple[float, int]] = []
        """Heap of (due, ledger id). An item that no longer matches its ledger is skipped."""
        self._watches = 0

    def __len__(self) -> int:
        return len(self._waiting)

    def __contains__(self, ledger_id: int) -> bool:
        return ledger_id in self._waiting

    def add(
        self,
        ledger_id: int,
        lock: ReplicationLock,
        *,
        is_open: bool,
        is_lost: bool,
        before: Postponed | None,
    ) -> Postponed:
        """Postpone a ledger after an attempt. Its lock is kept, unless too many locks are kept
        already."""
        settings = self._settings
        now_s = self._clock.monotonic_s()
        failures = before.failures if before is not None else 0
        open_since_s = before.open_since_s if before is not None else None
        if is_open and open_since_s is None:
            open_since_s = now_s
        elif not is_open:
            open_since_s = None
        if is_open and now_s < (
            grace_end_s := (open_since_s or 0.0) + settings.open_ledger_grace_s
        ):
            due_s = grace_end_s
        else:
            failures += 1
            due_s = now_s + self._delay_s(failures, is_lost=is_lost)
        is_kept = len(self._waiting) < settings.deferred_items_max
        postponed = Postponed(
            ledger_id, lock if is_kept else None, due_s, now_s, failures, open_since_s
        )
        self._waiting[ledger_id] = postponed
        heapq.heappush(self._order, (due_s, ledger_id))
        if self._watches < _WATCHES_MAX:
            self._watches += 1
            postponed.watch = self._store.watch(
                item_path(self._root, ledger_id), lambda event: self._on_item(ledger_id, event)
            )
        return postponed

    def take_due(self, now_s: float) -> Postponed | None:
        """Remove and return the due ledger with the earliest due time; None if none is due."""
        self._drop_stale()
        if not self._order or self._order[0][0] > now_s:
            return None
        _, ledger_id = heapq.heappop(self._order)
        return self._remove(ledger_id)

    @property
    def due_at_s(self) -> float:
        """When the next ledger is due; infinite if none waits."""
        self._drop_stale()
        return self._order[0][0] if self._order else float("inf")

    def on_bookies_changed(self) -> None:
        """Shorten all waits, since a bookie came or went: a failed repair may succeed now."""
        for postponed in self._waiting.values():
            self._hurry(postponed)
        if self._waiting:
            self._on_news()

    def clear(self) -> list[ReplicationLock]:
        """Remove all ledgers; return the locks that were kept."""
        locks = [each.lock for each in self._waiting.values() if each.lock is not None]
        for ledger_id in list(self._waiting):
            self._remove(ledger_id)
        self._order.clear()
        return locks

    def _delay_s(self, failures: int, *, is_lost: bool) -> float:
        settings = self._settings
        if is_lost or failures > settings.retry_doublings_max + 1:
            return settings.retry_delay_s_max
        return backoff(settings.retry_delay_s, failures, settings.retry_delay_s_max)

    def _on_item(self, ledger_id: int, event: WatchEvent) -> None:
        if (postponed := self._waiting.get(ledger_id)) is not None:
            self._hurry(postponed)
            self._on_news()

    def _hurry(self, postponed: Postponed) -> None:
        due_s = max(self._clock.monotonic_s(), postponed.attempted_s + self._settings.retry_delay_s)
        if due_s < postponed.due_s:
            postponed.due_s = due_s
            heapq.heappush(self._order, (due_s, postponed.ledger_id))

    def _remove(self, ledger_id: int) -> Postponed:
        postponed = self._waiting.pop(ledger_id)
        if postponed.watch is not None:
            postponed.watch.close()
            postponed.watch = None
            self._watches -= 1
        return postponed

    def _drop_stale(self) -> None:
        while self._order:
            due_s, ledger_id = self._order[0]
            postponed = self._waiting.get(ledger_id)
            if postponed is not None and postponed.due_s == due_s:
                return
            heapq.heappop(self._order)
