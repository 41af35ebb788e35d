"""Grouping of batches for one sync, and why a group is closed."""

import threading

from magnetar.bookie.journaling.journal import CloseReason, GroupQueue, JournalBatch
from magnetar.bookie.journaling.journal_format import RECORD_HEAD_BYTES, NewRecord
from magnetar.ledger.system import SystemClock


class ManualClock(SystemClock):
    def __init__(self) -> None:
        self.now_s = 100.0

    def monotonic_s(self) -> float:
        return self.now_s


def queue_of(
    clock: SystemClock, *, wait_s: float = 0, bytes_max: int = 1 << 20, entries_max: int = 1000
) -> GroupQueue[str]:
    return GroupQueue(clock, wait_s_max=wait_s, bytes_max=bytes_max, entries_max=entries_max)


def batch(name: str, *, size: int = RECORD_HEAD_BYTES, entries: int = 1) -> JournalBatch[str]:
    made = JournalBatch(name)
    made.add(NewRecord(1, 7, bytes(size - RECORD_HEAD_BYTES)), entries)
    return made


def put(queue: GroupQueue[str], *batches: JournalBatch[str]) -> None:
    for each in batches:
        queue.put(each)


def take(queue: GroupQueue[str]) -> tuple[list[str], CloseReason]:
    taken = queue.take()
    return [each.context for each in taken.batches], taken.reason


def test_what_waits_when_the_disk_is_free_is_one_group() -> None:
    queue = queue_of(ManualClock())
    put(queue, batch("a"), batch("b"), batch("c"))
    assert take(queue) == (["a", "b", "c"], CloseReason.IDLE)
    put(queue, batch("d"))
    assert take(queue) == (["d"], CloseReason.IDLE)


def test_a_group_keeps_to_its_bytes() -> None:
    queue = queue_of(ManualClock(), bytes_max=1000)
    put(queue, batch("a", size=400), batch("b", size=600), batch("c", size=400))
    assert take(queue) == (["a", "b"], CloseReason.BYTES)
    put(queue, batch("d", size=700))
    assert take(queue) == (["c"], CloseReason.BYTES)
    assert take(queue) == (["d"], CloseReason.IDLE)


def test_a_group_keeps_to_its_entries() -> None:
    queue = queue_of(ManualClock(), entries_max=5)
    put(queue, batch("a", entries=2), batch("b", entries=2), batch("c", entries=2))
    assert take(queue) == (["a", "b"], CloseReason.ENTRIES)
    assert take(queue) == (["c"], CloseReason.IDLE)
    put(queue, batch("d", entries=5), batch("e"))
    assert take(queue) == (["d"], CloseReason.ENTRIES)


def test_a_batch_that_is_too_large_is_a_group_of_its_own() -> None:
    queue = queue_of(ManualClock(), bytes_max=1000)
    put(queue, batch("a"), batch("big", size=5000), batch("b"))
    assert take(queue) == (["a"], CloseReason.BYTES)
    assert take(queue) == (["big"], CloseReason.BYTES)
    assert take(queue) == (["b"], CloseReason.IDLE)


def test_batches_that_are_over_the_limit_go_together_before_the_group_is_closed() -> None:
    """The batches waited behind a slow sync: not a row of small groups of those that waited
    longest."""
    clock = ManualClock()
    queue = queue_of(clock, wait_s=0.002)
    put(queue, batch("a"))
    clock.now_s += 0.5
    put(queue, batch("b"), batch("c"))
    clock.now_s += 0.5
    assert take(queue) == (["a", "b", "c"], CloseReason.WAIT)


def test_the_wait_counts_from_the_hand_over() -> None:
    """Not from the moment when the thread gets to it: it has waited for the disk already."""
    clock = ManualClock()
    queue = queue_of(clock, wait_s=3600)
    put(queue, batch("a"))
    clock.now_s += 3600
    assert take(queue) == (["a"], CloseReason.WAIT)


def test_a_group_waits_for_company_as_long_as_it_may() -> None:
    queue = queue_of(SystemClock(), wait_s=20, entries_max=2)
    put(queue, batch("a"))
    later = threading.Timer(0.01, lambda: put(queue, batch("b")))
    later.start()
    assert take(queue) == (["a", "b"], CloseReason.ENTRIES)
    later.join()


def test_a_lone_batch_waits_no_longer_than_the_limit() -> None:
    queue = queue_of(SystemClock(), wait_s=0.001)
    put(queue, batch("a"))
    assert take(queue) == (["a"], CloseReason.WAIT)


def test_what_waits_at_the_end_is_still_taken() -> None:
    queue = queue_of(SystemClock(), wait_s=3600)
    put(queue, batch("a"), batch("b"))
    queue.close()
    assert take(queue) == (["a", "b"], CloseReason.CLOSE)
    assert take(queue) == ([], CloseReason.CLOSE)
