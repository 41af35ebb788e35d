"""One holder at a time copies or drops a ledger's replicas."""

import random

import pytest

from magnetar.ledger.errors import UnknownOutcomeError
from magnetar.ledger.replication_lock import ReplicationLock, lock_path
from tests.dictionary_store import DictionaryStore

PATH = "/ledgers/underreplication/locks/urL7"


async def take(store: DictionaryStore, seed: int = 1) -> ReplicationLock | None:
    return await ReplicationLock.try_take(store, 7, holder="b1", random=random.Random(seed))


def test_the_lock_lies_beside_the_work_items() -> None:
    assert lock_path("/ledgers", 7) == PATH


async def test_one_holder_at_a_time() -> None:
    store = DictionaryStore()
    lock = await take(store)
    assert lock is not None
    assert await lock.is_held()
    assert await take(store, 2) is None
    await lock.release()
    assert await take(store, 2) is not None


async def test_the_value_names_the_holder() -> None:
    store = DictionaryStore()
    await take(store)
    assert store.nodes[PATH].startswith(b"b1 ")


async def test_a_lock_that_another_took_since_is_not_released() -> None:
    store = DictionaryStore()
    first = await take(store)
    assert first is not None
    del store.nodes[PATH]  # the session expired
    second = await take(store, 2)
    assert second is not None
    assert not await first.is_held()
    await first.release()
    assert await second.is_held()


async def test_releasing_twice_is_fine() -> None:
    store = DictionaryStore()
    lock = await take(store)
    assert lock is not None
    await lock.release()
    await lock.release()


@pytest.mark.parametrize("came_through", [True, False])
async def test_a_lost_reply_is_told_by_the_token(came_through: bool) -> None:
    class LosingStore(DictionaryStore):
        async def create(
            self,
            path: str,
            value: bytes = b"",
            *,
            ephemeral: bool = False,
            sequential: bool = False,
        ) -> str:
            if came_through:
                await super().create(path, value)
            raise UnknownOutcomeError("the reply was lost")

    assert (await take(LosingStore()) is not None) is came_through
