"""Turns for the creation of topics in a namespace with a limit."""

import asyncio
import gc
import random
from typing import cast
from urllib.parse import quote_plus

import pytest

from magnetar.broker.base.errors import BrokerMetadataError
from magnetar.broker.topics.creation import CreationTurns
from magnetar.ledger.errors import MetadataUnavailableError
from magnetar.ledger.metadata.store import MetadataStore, Versioned
from tests.dictionary_store import DictionaryStore
from tests.waiting import settle

NAMESPACE = "public/default"


class SlowStore(DictionaryStore):
    """Each creation and deletion is one trip to the store, or fails."""

    is_down = False

    async def create(
        self, path: str, value: bytes = b"", *, ephemeral: bool = False, sequential: bool = False
    ) -> str:
        await asyncio.sleep(0)
        if self.is_down:
            raise MetadataUnavailableError("down")
        return await super().create(path, value, ephemeral=ephemeral, sequential=sequential)

    async def delete(self, path: str, *, version: int | None = None) -> None:
        await asyncio.sleep(0)
        await super().delete(path, version=version)


def turns_of(store: DictionaryStore) -> CreationTurns:
    return CreationTurns(cast(MetadataStore, store), random.Random(1))


def turn_path() -> str:
    return f"/loadbalance/topic-creations/{quote_plus(NAMESPACE)}"


async def test_a_request_that_comes_as_a_turn_ends_waits_for_the_next_one() -> None:
    """Such a request meets a lock that is free already, but promised to an earlier request."""
    turns = turns_of(SlowStore())
    inside = most = 0

    async def create() -> None:
        nonlocal inside, most
        async with turns.turn(NAMESPACE):
            inside += 1
            most = max(most, inside)
            await settle(5)
            inside -= 1

    requests = []
    for _ in range(40):  # New requests come in each phase of a turn.
        requests.append(asyncio.create_task(create()))
        await asyncio.sleep(0)
    await asyncio.gather(*requests)
    assert most == 1


class LateStore(DictionaryStore):
    """A creation is done at once, and answered when the test says so."""

    def __init__(self) -> None:
        super().__init__()
        self.answers = asyncio.Event()

    async def create(
        self, path: str, value: bytes = b"", *, ephemeral: bool = False, sequential: bool = False
    ) -> str:
        made = await super().create(path, value, ephemeral=ephemeral, sequential=sequential)
        await self.answers.wait()
        return made


async def test_a_request_that_ends_before_it_hears_of_its_turn_gives_it_back() -> None:
    """Other brokers would wait for the turn until this one's session ends."""
    store = LateStore()
    request = asyncio.create_task(turns_of(store).turn(NAMESPACE).__aenter__())
    await settle()
    assert len(store.nodes) == 1
    request.cancel()
    await asyncio.wait([request])
    assert request.cancelled()
    assert store.nodes == {}


class SlowlyReadStore(DictionaryStore):
    """A read is answered when the test says so."""

    def __init__(self) -> None:
        super().__init__()
        self.answers = asyncio.Event()
        self.is_reading = asyncio.Event()

    async def get(self, path: str) -> Versioned:
        self.is_reading.set()
        await self.answers.wait()
        return await super().get(path)


@pytest.mark.parametrize("is_failed", [False, True])
@pytest.mark.parametrize("times", [1, 2])
async def test_a_request_that_is_cancelled_while_it_gives_its_turn_back_does_so_to_the_end(
    is_failed: bool, times: int
) -> None:
    """The connection of the request was lost. `is_failed`: also while it took the turn."""
    store = SlowlyReadStore()
    turns = turns_of(store)
    if is_failed:
        turn = turns.turn(NAMESPACE)
        store.nodes[turn_path()] = b"another broker"
        request = asyncio.create_task(turn.__aenter__())
        await store.is_reading.wait()
        store.nodes[turn_path()] = turns._value
        request.cancel()
        await settle()
    else:

        async def create() -> None:
            async with turns.turn(NAMESPACE):
                pass

        request = asyncio.create_task(create())
        await store.is_reading.wait()
    for _ in range(times):
        request.cancel()
        await settle()
    assert turns._locks[NAMESPACE].locked(), "or a later request uses a turn that is about to end"
    store.answers.set()
    await asyncio.wait([request])
    await settle()
    assert request.cancelled()
    assert store.nodes == {}
    async with turns.turn(NAMESPACE):
        assert len(store.nodes) == 1


async def test_a_request_that_ends_while_another_broker_has_the_turn_leaves_it_alone() -> None:
    store = DictionaryStore()
    async with turns_of(store).turn(NAMESPACE):
        (path,) = store.nodes
    store.nodes[path] = b"another broker"
    request = asyncio.create_task(turns_of(store).turn(NAMESPACE).__aenter__())
    await settle()
    request.cancel()
    await asyncio.wait([request])
    assert store.nodes == {path: b"another broker"}


async def test_a_turn_that_ended_with_its_session_is_not_taken_from_the_next_broker() -> None:
    store = DictionaryStore()
    async with turns_of(store).turn(NAMESPACE):
        (path,) = store.nodes
        store.nodes[path] = b"another broker"
    assert store.nodes == {path: b"another broker"}


async def test_turns_that_have_ended_or_failed_leave_no_lock() -> None:
    store = SlowStore()
    turns = turns_of(store)
    async with turns.turn(NAMESPACE):
        assert len(turns._locks) == 1
    store.is_down = True
    with pytest.raises(BrokerMetadataError):
        async with turns.turn(NAMESPACE):
            pass
    gc.collect()  # The error's traceback held the failed turn.
    assert not turns._locks
