"""Fixtures for pytest, there as soon as Magnetar is installed.

    async def test_orders(magnetar_broker, magnetar_topic):
        async with magnetar_broker.client() as client:
            ...

One broker serves a whole run of pytest: it starts with the first test that asks for it.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from magnetar.testing.broker import Broker


@pytest.fixture(scope="session")
def magnetar_broker() -> "Iterator[Broker]":
    """A running broker (`magnetar.testing.Broker`), shared by all tests of the run."""
    # Late: who does not ask for it does not pay for the server's imports.
    from magnetar.testing.broker import Broker

    with Broker() as broker:
        yield broker


@pytest.fixture
def magnetar_topic(magnetar_broker: "Broker", request: pytest.FixtureRequest) -> str:
    """The name of a topic that only this test has."""
    name = "".join(char if char.isalnum() else "-" for char in request.node.name)
    return magnetar_broker.new_topic(name)
