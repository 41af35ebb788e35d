"""Pauses between attempts."""

import asyncio
import random

import pytest

from magnetar.sdk.connection import Connection
from magnetar.sdk.errors import BrokerUnavailableError, OperationTimeoutError
from magnetar.sdk.ports import SystemClock
from magnetar.sdk.session import Session
from magnetar.sdk.settings import ClientSettings


async def test_no_pause_is_longer_than_what_is_left_of_the_operation_timeout() -> None:
    async def find() -> Connection:
        raise BrokerUnavailableError("nobody is there")

    async def attach(connection: Connection) -> None:
        raise AssertionError("there is none")

    settings = ClientSettings(
        operation_timeout_ms=50, reconnect_delay_min_ms=60_000, reconnect_delay_max_ms=60_000
    )
    session = Session(
        "t",
        find=find,
        attach=attach,
        on_failed=lambda _: None,
        settings=settings,
        clock=SystemClock(),
        random=random.Random(1),
    )
    async with asyncio.timeout(20):
        with pytest.raises(OperationTimeoutError, match=r"not ready within 50 ms.*nobody is there"):
            await session.start()
