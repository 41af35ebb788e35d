"""Connections of a client to brokers that come and go."""

from contextlib import AsyncExitStack

from magnetar.sdk import ClientSettings
from magnetar.sdk.connection import ConnectionPool
from magnetar.sdk.ports import SystemNetwork
from magnetar.sdk.service_url import Address
from tests.integration.sdk.scripted_broker import ScriptedBroker
from tests.waiting import until


async def test_connections_to_brokers_that_are_gone_are_not_kept() -> None:
    pool = ConnectionPool(ClientSettings(), SystemNetwork())
    async with AsyncExitStack() as running:
        brokers = [await running.enter_async_context(ScriptedBroker()) for _ in range(3)]
        gone, stays, new = [Address("127.0.0.1", broker.port) for broker in brokers]
        lost, kept = await pool.get(gone), await pool.get(stays)
        brokers[0].stop()
        await until(lambda: not lost.is_open)
        opened = await pool.get(new)
        assert list(pool._connections.values()) == [kept, opened]
        await pool.close()
