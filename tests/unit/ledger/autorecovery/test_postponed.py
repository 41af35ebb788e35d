"""When a ledger that could not be repaired is tried again."""

from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

from magnetar.ledger.autorecovery.postponed import Postponed, PostponedItems
from magnetar.ledger.autorecovery.worker_settings import WorkerSettings
from magnetar.ledger.metadata.store import WatchEvent
from magnetar.ledger.replication_lock import ReplicationLock
from magnetar.ledger.under_replication import item_path

SETTINGS = WorkerSettings(
    open_ledger_grace_s=30, retry_delay_s=5, retry_doublings_max=4, retry_delay_s_max=300
)


@dataclass
class Clock:
    now_s: float = 1000.0

    def monotonic_s(self) -> float:
        return self.now_s

    def boot_s(self) -> float:
        return self.now_s

    def wall_ms(self) -> int:
        return 0


@dataclass
class Watches:
    """The part of a store that is used here."""

    by_path: dict[str, Callable[[WatchEvent], None]] = field(default_factory=dict)

    def watch(self, path: str, callback: Callable[[WatchEvent], None]) -> "_Watch":
        self.by_path[path] = callback
        return _Watch(self, path)


@dataclass
class _Watch:
    watches: Watches
    path: str

    def close(self) -> None:
        self.watches.by_path.pop(self.path, None)


class Parts:
    def __init__(self, settings: WorkerSettings = SETTINGS) -> None:
        self.clock = Clock()
        self.watches = Watches()
        self.news = 0
        self.postponed = PostponedItems(
            self.watches,  # type: ignore[arg-type]  # no more of a store than `watch`
            clock=self.clock,
            root="/ledgers",
            settings=settings,
            on_news=self._on_news,
        )

    def _on_news(self) -> None:
        self.news += 1

    def fail(
        self,
        ledger_id: int = 7,
        *,
        before: Postponed | None = None,
        is_open: bool = False,
        is_lost: bool = False,
    ) -> Postponed:
        lock = ReplicationLock(self.watches, f"/lock{ledger_id}", b"")  # type: ignore[arg-type]
        return self.postponed.add(ledger_id, lock, is_open=is_open, is_lost=is_lost, before=before)

    def take(self) -> Postponed:
        taken = self.postponed.take_due(self.clock.now_s)
        assert taken is not None
        return taken


def test_delays_double_five_times_and_are_minutes_then() -> None:
    parts = Parts()
    delays: list[float] = []
    before: Postponed | None = None
    for _ in range(7):
        failed = parts.fail(before=before)
        delays.append(failed.due_s - parts.clock.now_s)
        assert parts.postponed.take_due(failed.due_s - 0.001) is None
        parts.clock.now_s = failed.due_s
        before = parts.take()
    assert delays == [5, 10, 20, 40, 80, 300, 300]


def test_a07_lost_entries_wait_long_at_once() -> None:
    parts = Parts()
    assert parts.fail(is_lost=True).due_s == parts.clock.now_s + 300


def test_the_tail_of_an_open_ledger_gets_its_grace_once() -> None:
    parts = Parts()
    failed = parts.fail(is_open=True)
    assert failed.due_s == 1030
    assert not failed.is_grace_over(1029.9, 30)
    parts.clock.now_s = 1030
    taken = parts.take()
    assert taken.is_grace_over(1030, 30)
    # It could not be closed: from here on it fails as any other does.
    assert parts.fail(is_open=True, before=taken).due_s == 1035


def test_a_look_within_the_grace_does_not_begin_it_anew() -> None:
    parts = Parts()
    parts.fail(is_open=True)
    parts.clock.now_s = 1010
    parts.postponed.on_bookies_changed()
    taken = parts.take()
    assert parts.fail(is_open=True, before=taken).due_s == 1030


def test_a_grace_ends_with_the_trouble() -> None:
    parts = Parts()
    parts.fail(is_open=True)
    parts.clock.now_s = 1030
    taken = parts.take()
    parts.fail(before=taken)  # closed by now, and a bookie does not answer
    parts.clock.now_s = 1035
    assert parts.fail(is_open=True, before=parts.take()).due_s == 1065


def test_a_change_of_the_item_ends_the_wait() -> None:
    parts = Parts()
    parts.fail(is_lost=True)
    parts.clock.now_s += 100
    parts.watches.by_path[item_path("/ledgers", 7)](WatchEvent.CHANGED)
    assert parts.news == 1
    assert parts.take().ledger_id == 7
    assert parts.watches.by_path == {}


def test_no_news_makes_attempts_hotter_than_the_first_delay() -> None:
    parts = Parts()
    failed = parts.fail(is_lost=True)
    parts.postponed.on_bookies_changed()
    assert parts.postponed.take_due(parts.clock.now_s) is None
    assert parts.postponed.due_at_s == failed.attempted_s + 5


def test_what_waits_longest_is_taken_first() -> None:
    parts = Parts()
    for number, ledger_id in enumerate((3, 1, 2)):
        parts.clock.now_s = 1000 + number
        parts.fail(ledger_id)
    parts.clock.now_s = 2000
    assert [parts.take().ledger_id for _ in range(3)] == [3, 1, 2]
    assert parts.postponed.take_due(9999) is None
    assert parts.postponed.due_at_s == float("inf")


@pytest.mark.parametrize("number", [2, 3])
def test_locks_are_kept_up_to_the_bound(number: int) -> None:
    parts = Parts(SETTINGS.model_copy(update={"deferred_items_max": 2}))
    failed = [parts.fail(ledger_id) for ledger_id in range(number)]
    assert sum(each.lock is None for each in failed) == max(0, number - 2)
    assert len(parts.postponed.clear()) == 2
    assert len(parts.postponed) == 0
