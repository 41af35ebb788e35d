"""An embedded broker for the tests of this folder."""

from collections.abc import AsyncIterator, Iterator
from itertools import count

import pytest

from magnetar.sdk import Client
from magnetar.testing import Broker

_NUMBERS = count(1)


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    # Only the tests change layouts.
    with Broker(settings={"broker": {"scalable_auto_scale": False}}) as running:
        yield running


@pytest.fixture
async def client(broker: Broker) -> AsyncIterator[Client]:
    async with broker.client() as running:
        yield running


@pytest.fixture
def topic() -> str:
    """The name of a scalable topic that no other test has."""
    return f"topic://public/default/scalable-{next(_NUMBERS)}"
