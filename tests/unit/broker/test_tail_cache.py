"""The tail cache: what it finds, what it drops, and the pool that bounds it."""

from magnetar.broker.topic.run import Run
from magnetar.broker.topic.tail_cache import TailCache, TailCachePool
from magnetar.ledger.position import Position


def _run(first: int, count: int = 10, ledger_id: int = 1) -> Run:
    return Run(ledger_id, first, [b"x" * 10] * count)


def test_a_run_is_found_by_any_of_its_positions() -> None:
    cache = TailCache(TailCachePool(10_000))
    runs = [_run(0), _run(10, 1), _run(0, 5, ledger_id=2)]
    for run in runs:
        cache.add(run)
    assert cache.find(Position(1, 0)) is runs[0]
    assert cache.find(Position(1, 9)) is runs[0]
    assert cache.find(Position(1, 10)) is runs[1]
    assert cache.find(Position(2, 4)) is runs[2]


def test_what_is_not_there_is_not_found() -> None:
    cache = TailCache(TailCachePool(10_000))
    assert cache.find(Position(1, 0)) is None
    cache.add(_run(5))
    cache.add(_run(20))
    for position in (Position(0, 7), Position(1, 4), Position(1, 15), Position(1, 30)):
        assert cache.find(position) is None


def test_eviction_stops_in_front_of_a_run_that_is_needed() -> None:
    pool = TailCachePool(10_000)
    cache = TailCache(pool)
    for first in (0, 10, 20):
        cache.add(_run(first))
    cache.evict_through(Position(1, 18))
    assert cache.find(Position(1, 9)) is None
    assert cache.find(Position(1, 10)) is not None
    cache.evict_through(Position(1, 19))
    assert cache.find(Position(1, 19)) is None
    assert pool.size_bytes == 100


def test_the_pool_drops_the_oldest_of_all_topics_at_its_limit() -> None:
    pool = TailCachePool(300)
    one, two = TailCache(pool), TailCache(pool)
    one.add(_run(0))
    two.add(_run(0))
    one.add(_run(10))
    assert (len(one), len(two), pool.size_bytes) == (2, 1, 300)
    two.add(_run(10))
    assert (len(one), len(two), pool.size_bytes) == (1, 2, 300)
    assert one.find(Position(1, 0)) is None


def test_a_run_larger_than_the_pool_is_not_kept() -> None:
    pool = TailCachePool(99)
    cache = TailCache(pool)
    cache.add(_run(0))
    assert (len(cache), pool.size_bytes) == (0, 0)


def test_long_use_keeps_the_lists_short() -> None:
    cache = TailCache(TailCachePool(1_000))
    for first in range(0, 100_000, 10):
        cache.add(_run(first))
    assert len(cache) == 10
    assert cache.find(Position(1, 99_995)) is not None
    assert len(cache._runs) < 1_000


def test_clearing_gives_the_memory_back() -> None:
    pool = TailCachePool(10_000)
    cache = TailCache(pool)
    cache.add(_run(0))
    cache.clear()
    assert (len(cache), pool.size_bytes) == (0, 0)


def test_a_run_is_inserted_in_its_place() -> None:
    pool = TailCachePool(10_000)
    cache = TailCache(pool)
    cache.add(_run(30))
    cache.insert(_run(0))
    cache.insert(_run(10))
    assert cache.next_start(Position(1, 0)) == Position(1, 10)
    assert cache.next_start(Position(1, 10)) == Position(1, 30)
    assert cache.next_start(Position(1, 30)) is None
    cache.evict_through(Position(1, 9))
    assert cache.find(Position(1, 0)) is None
    assert cache.find(Position(1, 19)) is not None
    assert (len(cache), pool.size_bytes) == (2, 200)


def test_what_is_there_already_is_not_inserted_again() -> None:
    pool = TailCachePool(10_000)
    cache = TailCache(pool)
    cache.add(_run(10))
    for first in (5, 10, 15):
        cache.insert(_run(first))
    assert (len(cache), pool.size_bytes) == (1, 100)


def test_the_pool_drops_what_came_first_wherever_it_lies() -> None:
    pool = TailCachePool(300)
    cache = TailCache(pool)
    cache.add(_run(20))
    cache.insert(_run(0))
    cache.insert(_run(40))
    cache.insert(_run(60))
    assert cache.find(Position(1, 20)) is None
    assert all(cache.find(Position(1, each)) is not None for each in (0, 40, 60))
    assert pool.size_bytes == 300


def test_a_run_larger_than_the_pool_is_not_inserted() -> None:
    pool = TailCachePool(99)
    cache = TailCache(pool)
    cache.insert(_run(0))
    assert (len(cache), pool.size_bytes) == (0, 0)
