"""One holder at a time copies or drops a ledger's replicas."""

import asyncio
import random

import pytest

from magnetar.ledger.errors import MetadataUnavailableError, UnknownOutcomeError
from magnetar.ledger.metadata.store import Versioned
from magnetar.ledger.replication_lock import ReplicationLock, UnreleasedLocks, lock_path
from tests.dictionary_store import DictionaryStore
from tests.waiting import settle

PATH = "/ledgers/underreplication/locks/urL7"


async def take(
    store: DictionaryStore, seed: int = 1, unclear: UnreleasedLocks | None = None
) -> ReplicationLock | None:
    return await ReplicationLock.try_take(
        store,
        7,
        holder="b1",
        random=random.Random(seed),
        unclear=UnreleasedLocks() if unclear is None else unclear,
    )


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


class LosingStore(DictionaryStore):
    """A store that loses the reply to a creation, perhaps the creation itself."""

    def __init__(self, *, came_through: bool, is_away: bool = False) -> None:
        super().__init__()
        self._came_through = came_through
        self.is_away = is_away

    async def create(
        self,
        path: str,
        value: bytes = b"",
        *,
        ephemeral: bool = False,
        sequential: bool = False,
    ) -> str:
        if self._came_through:
            await super().create(path, value)
        raise UnknownOutcomeError("the reply was lost")

    async def get(self, path: str) -> Versioned:
        if self.is_away:
            raise MetadataUnavailableError("no contact")
        return await super().get(path)


@pytest.mark.parametrize("came_through", [True, False])
async def test_a_lost_reply_is_told_by_the_token(came_through: bool) -> None:
    assert (await take(LosingStore(came_through=came_through)) is not None) is came_through


async def test_a_lock_that_may_have_been_taken_is_the_caller_s_to_give_back() -> None:
    store = LosingStore(came_through=True, is_away=True)
    unclear = UnreleasedLocks()
    with pytest.raises(MetadataUnavailableError):
        await take(store, unclear=unclear)
    assert len(unclear) == 1
    assert PATH in store.nodes
    store.is_away = False
    await unclear.release_all()
    assert PATH not in store.nodes
    assert len(unclear) == 0


async def test_a_lock_whose_creation_may_come_yet_is_the_caller_s_to_give_back() -> None:
    unclear = UnreleasedLocks()
    assert await take(LosingStore(came_through=False), unclear=unclear) is None
    assert len(unclear) == 1


class SilentStore(DictionaryStore):
    """A store that does what it is asked, and does not answer while `is_silent`."""

    is_silent = False
    defect: Exception | None = None
    """Raised by the next read."""

    async def create(
        self, path: str, value: bytes = b"", *, ephemeral: bool = False, sequential: bool = False
    ) -> str:
        created = await super().create(path, value)
        await self._answer()
        return created

    async def get(self, path: str) -> Versioned:
        await self._answer()
        defect, self.defect = self.defect, None
        if defect is not None:
            raise defect
        return await super().get(path)

    async def _answer(self) -> None:
        if self.is_silent:
            await asyncio.get_running_loop().create_future()


async def cut_off(store: SilentStore, task: "asyncio.Task[object]") -> None:
    """Cancel what waits for an answer; the store answers again."""
    await settle()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    store.is_silent = False


async def test_a_lock_whose_creation_was_cancelled_is_the_caller_s_to_give_back() -> None:
    store, unclear = SilentStore(), UnreleasedLocks()
    store.is_silent = True
    await cut_off(store, asyncio.create_task(take(store, unclear=unclear)))
    assert PATH in store.nodes
    await unclear.release_all()
    assert PATH not in store.nodes
    assert len(unclear) == 0


async def test_a_lock_whose_release_was_cancelled_is_released_later() -> None:
    store, unreleased = SilentStore(), UnreleasedLocks()
    lock = await take(store)
    assert lock is not None
    store.is_silent = True
    await cut_off(store, asyncio.create_task(unreleased.release(lock)))
    await unreleased.release_all()
    assert PATH not in store.nodes
    assert len(unreleased) == 0


async def test_no_lock_is_forgotten_when_the_release_of_one_breaks() -> None:
    store, unreleased = SilentStore(), UnreleasedLocks()
    for ledger_id in range(3):
        path = lock_path("/ledgers", ledger_id)
        await store.create(path, b"b1")
        unreleased.add(ReplicationLock(store, path, b"b1"))
    store.defect = ValueError("a bug")
    with pytest.raises(ValueError, match="a bug"):
        await unreleased.release_all()
    assert len(unreleased) == 3
    await unreleased.release_all()
    assert store.nodes == {}
    assert len(unreleased) == 0
