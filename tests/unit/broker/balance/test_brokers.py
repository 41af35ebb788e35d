"""The view of the registered brokers: what must not end its following."""

import asyncio

import pytest

from magnetar.broker.cluster.balance import brokers as brokers_module
from magnetar.broker.cluster.balance.brokers import Brokers
from magnetar.broker.cluster.ownership.records import BrokerRecord, broker_path
from magnetar.ledger.metadata.store import SessionState
from tests.dictionary_store import DictionaryStore
from tests.waiting import until


def record(name: str) -> BrokerRecord:
    return BrokerRecord(
        name=name,
        native_url=f"pulsar://{name}:6650",
        http_url=f"http://{name}:8080",
        session_token=f"token-of-{name}",
    )


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
    monkeypatch.setattr(brokers_module, "_RELOAD_RETRY_DELAY_S", 0.0)
    store = BreakingStore()
    brokers = Brokers(store)
    changed = asyncio.Event()

    def broken() -> None:
        raise KeyError("a defect")

    brokers.on_change(broken)
    brokers.on_change(changed.set)
    await brokers.start()
    for name in ("one", "two"):
        changed.clear()
        store.breaks = True
        await store.create(broker_path(name), record(name).encode())
        brokers._on_session_change(SessionState.CONNECTED)
        await until(lambda: changed.is_set(), "the other callback is called")
    assert list(brokers.all()) == ["one", "two"]
    await brokers.close()
