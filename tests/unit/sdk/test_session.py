"""Pauses between attempts."""

import asyncio
import random

import pytest

from magnetar.sdk.connection import Connection
from magnetar.sdk.errors import BrokerUnavailableError, OperationTimeoutError
from magnetar.sdk.ports import SystemClock
from magnetar.sdk.session import Backoff, Session
from magnetar.sdk.settings import ClientSettings


def test_pauses_double_up_to_the_bound_and_begin_again() -> None:
    backoff = Backoff(min_s=0.1, max_s=1.0, random=random.Random(1))
    pauses = [backoff.next_s() for _ in range(6)]
    for pause, nominal in zip(pauses, (0.1, 0.2, 0.4, 0.8, 1.0, 1.0), strict=True):
        assert 0.8 * nominal <= pause <= nominal
    backoff.reset()
    assert backoff.next_s() <= 0.1


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
