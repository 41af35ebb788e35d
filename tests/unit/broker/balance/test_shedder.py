"""The shell around shedding: what must not end it."""

import asyncio
from types import SimpleNamespace
from typing import Any, cast

from magnetar.broker.base.settings.broker import BrokerSettings
from magnetar.broker.cluster.balance.brokers import Brokers
from magnetar.broker.cluster.balance.layouts import Layouts
from magnetar.broker.cluster.balance.leader import LeaderBroker
from magnetar.broker.cluster.balance.shedder import Shedder
from magnetar.ledger.system import SystemClock
from tests.dictionary_store import DictionaryStore

WAIT_S = 10.0


async def test_an_unexpected_error_does_not_end_the_checks() -> None:
    checks: asyncio.Queue[None] = asyncio.Queue()

    def pending() -> dict[object, object]:
        checks.put_nowait(None)
        raise KeyError("a defect")

    store = DictionaryStore()
    shedder = Shedder(
        store,
        Brokers(store),
        Layouts(store, bundles_default=2, bundles_max=8),
        cast(LeaderBroker, SimpleNamespace(is_leader=True, pending=pending)),
        cast(Any, None),
        settings=BrokerSettings(shedding_interval_ms=1_000).model_copy(
            update={"shedding_interval_ms": 1}
        ),
        clock=SystemClock(),
    )
    shedder.start()
    async with asyncio.timeout(WAIT_S):
        for _ in range(3):
            await checks.get()
    await shedder.close()
