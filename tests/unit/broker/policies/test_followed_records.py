"""A value in memory that follows its node, when reads and events meet in every order."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from magnetar.broker.base.errors import BrokerMetadataError
from magnetar.broker.policies.records import Followed
from magnetar.ledger.metadata.store import MetadataStore, WatchEvent
from magnetar.ledger.metadata.url import open_store
from tests.waiting import settle


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[MetadataStore]:
    opened = await open_store(f"embedded:{tmp_path / 'metadata.db'}")
    yield opened
    await opened.close()


class Reads:
    """Answers what it is told to, and counts."""

    def __init__(self) -> None:
        self.value = 0
        self.count = 0
        self.gate: asyncio.Event | None = None
        self.error: BrokerMetadataError | None = None

    async def __call__(self) -> int:
        self.count += 1
        value = self.value
        if self.gate is not None:
            await self.gate.wait()
        if self.error is not None:
            raise self.error
        return value


def follow(store: MetadataStore, reads: Reads, told: list[tuple[int, int]]) -> Followed[int]:
    return Followed(
        store, "/x", reads, lambda before, after: told.append((before, after)), asyncio.Semaphore(4)
    )


async def test_an_event_during_a_read_has_it_read_again(store: MetadataStore) -> None:
    reads, told = Reads(), list[tuple[int, int]]()
    followed = follow(store, reads, told)
    reads.gate = asyncio.Event()
    asked = asyncio.create_task(followed.get())
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    reads.value = 1
    followed._on_event(WatchEvent.CHANGED)
    reads.gate.set()
    assert await asyncio.wait_for(asked, 5) == 1
    assert reads.count == 2
    assert told == []  # nobody had the first value
    followed.close()


@pytest.mark.parametrize("turns", range(8))
async def test_who_asks_while_a_read_ends_never_spins(store: MetadataStore, turns: int) -> None:
    reads = Reads()
    followed = follow(store, reads, [])
    reads.gate = asyncio.Event()
    first = asyncio.create_task(followed.get())
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    followed._on_event(WatchEvent.CHANGED)  # the read under way is old by now
    reads.gate.set()
    await settle(turns)
    answers = await asyncio.wait_for(asyncio.gather(first, followed.get()), 5)
    assert list(answers) == [0, 0]
    followed.close()


@pytest.mark.parametrize("turns", range(16))
async def test_a_change_is_told_of_whenever_it_comes_after_another(
    store: MetadataStore, turns: int
) -> None:
    reads, told = Reads(), list[tuple[int, int]]()
    followed = follow(store, reads, told)
    assert await followed.get() == 0
    reads.value = 1
    followed._on_event(WatchEvent.CHANGED)
    await settle(turns)
    reads.value = 2
    followed._on_event(WatchEvent.CHANGED)
    await settle(32)
    assert told[-1][1] == 2
    followed.close()


async def test_what_was_read_stays_in_force_while_the_store_is_away(store: MetadataStore) -> None:
    reads, told = Reads(), list[tuple[int, int]]()
    followed = follow(store, reads, told)
    assert await followed.get() == 0
    reads.error = BrokerMetadataError("away")
    followed._on_event(WatchEvent.CHANGED)
    with pytest.raises(BrokerMetadataError):
        await followed.get()
    assert followed.value == 0
    reads.error, reads.value = None, 2
    assert await followed.get() == 2
    assert told == [(0, 2)]
    followed.close()


async def test_a_read_that_hangs_holds_up_nobody_who_knows_the_last_value(
    store: MetadataStore,
) -> None:
    reads = Reads()
    followed = follow(store, reads, [])
    assert await followed.get() == 0
    reads.gate = asyncio.Event()
    followed._on_event(WatchEvent.CHANGED)
    assert await asyncio.wait_for(followed.latest(), 30) == 0
    again = asyncio.ensure_future(followed.latest())  # the same read is not waited for again
    await settle(5)
    assert again.done()
    reads.value = 1
    reads.gate.set()
    assert await asyncio.wait_for(followed.get(), 5) == 0  # what that read had begun with
    followed._on_event(WatchEvent.CHANGED)
    assert await asyncio.wait_for(followed.latest(), 5) == 1
    followed.close()


async def test_a_value_that_is_read_again_has_what_nobody_has_told_of(store: MetadataStore) -> None:
    """A read that is under way, and began before, does not count."""
    reads, told = Reads(), list[tuple[int, int]]()
    followed = follow(store, reads, told)
    assert await followed.get() == 0
    reads.value = 1
    assert await followed.get() == 0, "no watch has fired"
    assert await followed.reread() == 1
    assert told == [(0, 1)]
    reads.gate = asyncio.Event()
    old = asyncio.create_task(followed.reread())
    await settle(50)
    reads.value = 2
    new = asyncio.create_task(followed.reread())
    await settle(50)
    reads.gate.set()
    assert await asyncio.wait_for(new, 5) == 2
    await old
    followed.close()
