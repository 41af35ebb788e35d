"""Connections of a client to brokers that come and go."""

import asyncio
import gc
import socket
import weakref
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


async def test_a_refusal_that_comes_when_nobody_waits_any_more_is_no_unseen_error() -> None:
    unseen: list[str] = []
    asyncio.get_running_loop().set_exception_handler(
        lambda _, context: unseen.append(str(context["message"]))
    )
    settings = ClientSettings(connect_timeout_ms=100)
    pool = ConnectionPool(settings, SystemNetwork())
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = Address("127.0.0.1", silent.getsockname()[1])
        waiting = asyncio.create_task(pool.get(address))
        await until(lambda: bool(pool._opening))
        (opening,) = [weakref.ref(each) for each in pool._opening.values()]
        waiting.cancel()
        await until(lambda: not pool._opening)
    del waiting  # It refers to what it has waited for.
    await until(lambda: gc.collect() >= 0 and opening() is None)
    assert unseen == []
    await pool.close()
