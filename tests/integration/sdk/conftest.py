"""A scripted broker, and clients that lose no time."""

from collections.abc import AsyncIterator

import pytest

from magnetar.sdk import Client, ClientSettings
from tests.integration.sdk.scripted_broker import ScriptedBroker

FAST = ClientSettings(
    connect_timeout_ms=5_000,
    operation_timeout_ms=5_000,
    reconnect_delay_min_ms=1,
    reconnect_delay_max_ms=20,
)


@pytest.fixture
async def broker() -> AsyncIterator[ScriptedBroker]:
    async with ScriptedBroker() as running:
        yield running


@pytest.fixture
async def client(broker: ScriptedBroker) -> AsyncIterator[Client]:
    async with Client(broker.url, FAST) as running:
        yield running
