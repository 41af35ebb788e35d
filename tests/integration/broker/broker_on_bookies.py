"""A real broker in this process, on real bookies and an embedded metadata store."""

import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from magnetar.broker.base.settings.broker import BrokerSettings
from magnetar.broker.broker import Broker
from magnetar.broker.features.tracing import Spans
from magnetar.ledger.ports import Clock
from magnetar.ledger.system import SystemClock, SystemNetwork
from tests.integration.ledger.cluster import Cluster

TOPIC = "persistent://public/default/topic"

_SETTINGS: dict[str, Any] = {
    "port": 0,
    "http_port": 0,
    "ack_persist_interval_ms": 0,
    # A disk that is shared with a benchmark can hold one entry for longer than probes wait.
    "health_check_timeout_ms": 30_000,
}


@asynccontextmanager
async def broker_on(
    cluster: Cluster,
    *,
    seed: int = 3,
    spans: Spans | None = None,
    clock: Clock | None = None,
    **settings: Any,
) -> AsyncIterator[Broker]:
    """A started broker with a ledger client of its own; stopped in the end."""
    async with cluster.client() as client:
        broker = Broker(
            BrokerSettings(**(_SETTINGS | settings)),
            client,
            cluster.store,
            clock=clock or SystemClock(),
            network=SystemNetwork(),
            random=random.Random(seed),
            spans=spans,
        )
        await broker.start()
        try:
            yield broker
        finally:
            await broker.stop()
