"""Each test has a world of its own."""

import pytest

from tests.unit.cursors.world import World


@pytest.fixture
async def world() -> World:
    return World()
