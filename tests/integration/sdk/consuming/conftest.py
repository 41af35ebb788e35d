"""One broker for the tests of a module."""

from collections.abc import AsyncIterator, Iterator

import pytest

from magnetar.sdk import Client
from magnetar.testing import Broker


@pytest.fixture(scope="module")
def server() -> Iterator[Broker]:
    with Broker() as running:
        yield running


@pytest.fixture
def topic(server: Broker) -> str:
    return server.new_topic()


@pytest.fixture
async def client(server: Broker) -> AsyncIterator[Client]:
    async with server.client() as running:
        yield running
