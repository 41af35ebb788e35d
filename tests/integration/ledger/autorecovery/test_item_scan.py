"""Work items are found by watches: a busy worker sets none, an idle one asks for nothing."""

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest

from magnetar.ledger.autorecovery.item_scan import ItemScan
from magnetar.ledger.autorecovery.work_items import WorkItems
from magnetar.ledger.metadata.store import MetadataStore
from magnetar.ledger.replication_lock import UnreleasedLocks
from magnetar.ledger.system import SystemClock
from magnetar.ledger.under_replication import EVERYTHING

WAIT_S = 60.0


class Finder:
    """One worker's search, on a store that counts what it is asked."""

    def __init__(self, store: MetadataStore) -> None:
        self.requests = 0
        self.news = asyncio.Event()
        clock = SystemClock()
        counting = _Counting(store, self._on_request)
        self.items = WorkItems(store, clock=clock, random=random.Random(1))
        self.scan = ItemScan(
            WorkItems(counting, clock=clock, random=random.Random(2)),
            counting,
            clock=clock,
            random=random.Random(3),
            root="/ledgers",
            rescan_s=3600.0,
            pause_s=0.001,
            on_news=self.news.set,
        )

    def _on_request(self) -> None:
        self.requests += 1

    async def find(self) -> list[int]:
        return sorted(await self.scan.find(lambda ledger_id: False))

    async def wait_news(self) -> None:
        async with asyncio.timeout(WAIT_S):
            await self.news.wait()
        self.news.clear()


class _Counting:
    """Hands all calls on, and counts those that are answered by the server."""

    def __init__(self, store: MetadataStore, on_request: Callable[[], None]) -> None:
        self._store = store
        self._on_request = on_request

    def __getattr__(self, name: str) -> Any:
        call = getattr(self._store, name)
        if name in ("watch", "on_session_change"):
            return call

        def counted(*arguments: Any, **options: Any) -> Awaitable[Any]:
            self._on_request()
            answer: Awaitable[Any] = call(*arguments, **options)
            return answer

        return counted


@pytest.fixture
async def finder(store: MetadataStore) -> AsyncIterator[Finder]:
    made = Finder(store)
    yield made
    made.scan.close()


async def publish(finder: Finder, *ledger_ids: int) -> None:
    for ledger_id in ledger_ids:
        await finder.items.publish(ledger_id, {"b1": [EVERYTHING]})


async def test_items_are_found_wherever_their_ids_put_them(finder: Finder) -> None:
    ids = [0, 1, 0x10000, 0x1_0000_0000, (1 << 63) - 1]
    await publish(finder, *ids)
    assert await finder.find() == ids
    assert await finder.items.ids() == ids


async def test_an_item_that_comes_later_is_news(finder: Finder) -> None:
    assert await finder.find() == []
    await publish(finder, 5)
    await finder.wait_news()
    assert await finder.find() == [5]


async def test_an_item_beside_others_is_news(finder: Finder) -> None:
    await publish(finder, 5, 6)
    assert sorted(await finder.scan.find(lambda ledger_id: True)) == []
    await publish(finder, 7)
    await finder.wait_news()
    assert await finder.find() == [5, 6, 7]


async def test_an_item_of_another_worker_is_found_when_its_lock_is_given_back(
    finder: Finder,
) -> None:
    await publish(finder, 5)
    lock = await finder.items.take_lock(5, "another", unclear=UnreleasedLocks())
    assert lock is not None
    assert await finder.find() == []
    await lock.release()
    await finder.wait_news()
    assert await finder.find() == [5]


async def test_a12_an_idle_worker_asks_for_nothing(finder: Finder) -> None:
    assert await finder.find() == []
    before = finder.requests
    await asyncio.sleep(0.3)
    assert finder.requests == before
    assert finder.scan.due_at_s > SystemClock().monotonic_s() + 3000


async def test_a12_items_that_are_finished_one_by_one_are_not_listed_each_time(
    finder: Finder,
) -> None:
    ids = list(range(1, 31))
    await publish(finder, *ids)
    found = await finder.find()
    assert found == ids
    listed = finder.requests
    for ledger_id in found:
        item = await finder.items.read(ledger_id)
        assert item is not None
        assert await finder.items.delete(item)
    await asyncio.sleep(0.1)
    assert finder.requests == listed
    assert await finder.find() == []
    assert await finder.items.directories() == [("/ledgers/underreplication/ledgers", [])]


async def test_a01_an_item_that_has_changed_is_not_deleted(finder: Finder) -> None:
    await publish(finder, 5)
    item = await finder.items.read(5)
    assert item is not None
    await finder.items.publish(5, {"b2": [(0, 3)]})
    assert not await finder.items.delete(item)
    changed = await finder.items.read(5)
    assert changed is not None
    assert changed.missing == {"b1": [EVERYTHING], "b2": [(0, 3)]}
    assert changed.since_ms == item.since_ms


async def test_publishing_the_same_again_changes_nothing(finder: Finder) -> None:
    assert await finder.items.publish(5, {"b1": [EVERYTHING]})
    assert not await finder.items.publish(5, {"b1": [EVERYTHING]})
    item = await finder.items.read(5)
    assert item is not None
    assert item.version == 0


async def test_publishing_the_same_again_keeps_an_item_that_is_in_work(finder: Finder) -> None:
    await publish(finder, 5)
    lock = await finder.items.take_lock(5, "another", unclear=UnreleasedLocks())
    item = await finder.items.read(5)
    assert lock is not None
    assert item is not None
    assert not await finder.items.publish(5, item.missing)
    assert not await finder.items.delete(item)
    again = await finder.items.read(5)
    assert again is not None
    assert (again.missing, again.since_ms) == (item.missing, item.since_ms)


async def test_an_empty_directory_that_was_left_behind_is_no_item(finder: Finder) -> None:
    await publish(finder, 5)
    item = await finder.items.read(5)
    assert item is not None
    await finder.items.publish(6, {"b1": [EVERYTHING]})
    assert await finder.items.delete(item)
    assert await finder.find() == [6]
    assert await finder.items.remove_directories(5)
    assert not await finder.items.remove_directories(6)
    assert await finder.find() == [6]
