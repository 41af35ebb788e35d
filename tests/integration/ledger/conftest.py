"""Both metadata stores, for the tests that must hold for each."""

import itertools
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from magnetar.ledger.metadata import MetadataStore
from tests.integration.ledger.metadata_stores import Stores

_numbers = itertools.count()


@pytest.fixture(params=["embedded", "zookeeper"])
async def stores(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Stores]:
    """An empty store of each kind, and as many handles on it as the test wants."""
    if request.param == "embedded":
        url = f"embedded:{tmp_path / 'metadata.db'}"
    else:
        url = f"{request.getfixturevalue('zookeeper').url}/tests/{next(_numbers)}"
    made = Stores(url)
    yield made
    await made.close()


@pytest.fixture
async def store(stores: Stores) -> MetadataStore:
    """One handle on an empty store of each kind."""
    return await stores.open()
