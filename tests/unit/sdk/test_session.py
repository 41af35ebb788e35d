"""Sessions: pauses between attempts, and what a session does at the broker when it ends."""

import asyncio
import random

import pytest

from magnetar.sdk.connection import Connection
from magnetar.sdk.errors import BrokerUnavailableError, OperationTimeoutError
from magnetar.sdk.ports import SystemClock
from magnetar.sdk.session import Session
from magnetar.sdk.settings import ClientSettings
from tests.waiting import settle


class Broker:
    """Counts what a session has at a broker, which answers at once."""

    def __init__(self) -> None:
        self.attached = 0
        self.detaching = asyncio.Event()
        self.may_detach = asyncio.Event()

    async def find(self) -> Connection:
        return Connection(ClientSettings(), name="broker")

    async def attach(self, connection: Connection) -> None:
        self.attached += 1

    async def detach(self) -> None:
        self.detaching.set()
        await self.may_detach.wait()
        self.attached = max(0, self.attached - 1)

    def session(self) -> Session:
        return Session(
            "t",
            find=self.find,
            attach=self.attach,
            detach=self.detach,
            on_failed=lambda _: None,
            settings=ClientSettings(),
            clock=SystemClock(),
            random=random.Random(1),
        )


async def test_a_session_that_loses_its_broker_while_it_closes_does_not_attach_again() -> None:
    broker = Broker()
    session = broker.session()
    await session.start()
    closing = asyncio.create_task(session.close())
    await broker.detaching.wait()
    session.lose()
    await settle()
    broker.may_detach.set()
    await closing
    assert broker.attached == 0


@pytest.mark.parametrize("turns", range(10))
async def test_a_session_is_detached_when_its_start_is_cancelled(turns: int) -> None:
    broker = Broker()
    broker.may_detach.set()
    starting = asyncio.create_task(broker.session().start())
    await settle(turns)
    if starting.done():
        return
    starting.cancel()
    await asyncio.gather(starting, return_exceptions=True)
    assert broker.attached == 0


async def test_no_pause_is_longer_than_what_is_left_of_the_operation_timeout() -> None:
    async def find() -> Connection:
        raise BrokerUnavailableError("nobody is there")

    async def attach(connection: Connection) -> None:
        raise AssertionError("there is none")

    async def detach() -> None:
        """Do nothing: there is nothing to undo."""

    settings = ClientSettings(
        operation_timeout_ms=50, reconnect_delay_min_ms=60_000, reconnect_delay_max_ms=60_000
    )
    session = Session(
        "t",
        find=find,
        attach=attach,
        detach=detach,
        on_failed=lambda _: None,
        settings=settings,
        clock=SystemClock(),
        random=random.Random(1),
    )
    async with asyncio.timeout(20):
        with pytest.raises(OperationTimeoutError, match=r"not ready within 50 ms.*nobody is there"):
            await session.start()
