"""Reads of the index run side by side; only opening it anew is for one alone."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier, Event

import pytest

from magnetar.bookie.indexes.index_mark import IndexMark
from magnetar.bookie.indexes.location_index import IndexChanges
from magnetar.bookie.indexes.rocks_index import RocksIndex
from magnetar.bookie.indexes.rocks_store import RocksStore
from magnetar.bookie.indexes.shared_lock import SharedLock
from magnetar.ledger.system import SystemDisk

TIMEOUT_S = 10.0


def test_two_reads_of_the_index_are_in_the_store_at_the_same_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    index = RocksIndex.open(
        str(tmp_path / "index"), IndexMark(str(tmp_path / "index-mark"), SystemDisk())
    )
    index.commit(IndexChanges(last_log_id=0))
    both = Barrier(2, timeout=TIMEOUT_S)
    floor = RocksStore.floor

    def meet(store: RocksStore, key: bytes) -> tuple[bytes, bytes] | None:
        both.wait()  # broken, if the other one has to wait for us
        return floor(store, key)

    monkeypatch.setattr(RocksStore, "floor", meet)
    with ThreadPoolExecutor(2) as threads:
        assert list(threads.map(lambda entry_id: index.find(1, entry_id), (0, 1))) == [None, None]
    index.close()


def test_who_wants_the_lock_alone_waits_for_those_who_share_it_and_comes_before_later_ones() -> (
    None
):
    lock, steps = SharedLock(), list[str]()
    has_begun, may_end = Event(), Event()

    def share() -> None:
        with lock:
            has_begun.set()
            assert may_end.wait(TIMEOUT_S)
            steps.append("shared")

    def alone() -> None:
        with lock.alone():
            steps.append("alone")

    def share_later() -> None:
        with lock:
            steps.append("later")

    with ThreadPoolExecutor(3) as threads:
        calls = [threads.submit(share)]
        assert has_begun.wait(TIMEOUT_S)
        calls.append(threads.submit(alone))
        while not lock.is_wanted_alone:
            pass
        calls.append(threads.submit(share_later))
        may_end.set()
        for call in calls:
            call.result(TIMEOUT_S)
    assert steps == ["shared", "alone", "later"]


def test_an_error_under_the_lock_gives_it_back() -> None:
    lock = SharedLock()
    with pytest.raises(KeyError), lock:
        raise KeyError
    with pytest.raises(KeyError), lock.alone():
        raise KeyError
    with lock:
        pass
    with lock.alone():
        pass
