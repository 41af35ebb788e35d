"""The view of the registered bookies: what must not end its following."""

import asyncio

import pytest

from magnetar.ledger import registration as registration_module
from magnetar.ledger.metadata.store import SessionState
from magnetar.ledger.registration import BookieInfo, BookieRegistry
from tests.dictionary_store import DictionaryStore
from tests.waiting import until


class BreakingStore(DictionaryStore):
    """A store whose next listing fails as no store should."""

    breaks = False

    async def children(self, path: str) -> list[str]:
        if self.breaks:
            self.breaks = False
            raise KeyError("a defect")
        return await super().children(path)


async def test_an_unexpected_error_of_the_store_or_a_callback_does_not_end_the_following(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(registration_module, "_RELOAD_RETRY_DELAY_S", 0.0)
    store = BreakingStore()
    registry = BookieRegistry(store)
    changed = asyncio.Event()

    def broken() -> None:
        raise KeyError("a defect")

    registry.on_change(broken)
    registry.on_change(changed.set)
    await registry.start()
    for name in ("b1", "b2"):
        changed.clear()
        await registry.register(BookieInfo(name, "127.0.0.1", 3181, readonly=False))
        store.breaks = True
        registry._on_session_change(SessionState.CONNECTED)
        await until(lambda: changed.is_set(), "the other callback is called")
    assert sorted(registry.writable()) == ["b1", "b2"]
    await registry.close()
