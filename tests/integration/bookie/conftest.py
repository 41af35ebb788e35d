"""The machine of most tests here; those that need another one say so themselves."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.integration.bookie.bookie_machine import BookieMachine, store_in


@pytest.fixture
async def machine(tmp_path: Path) -> AsyncIterator[BookieMachine]:
    async with store_in(tmp_path) as store:
        yield BookieMachine(store, tmp_path)
