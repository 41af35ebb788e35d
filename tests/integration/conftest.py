"""Fixtures that several components' integration tests share."""

from collections.abc import Iterator

import pytest

from tests.zookeeper_fixture import ZooKeeper


@pytest.fixture(scope="session")
def zookeeper(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ZooKeeper]:
    """A real ZooKeeper server for the whole run; each test takes a path of its own below it."""
    server = ZooKeeper(tmp_path_factory.mktemp("zookeeper"))
    server.start()
    yield server
    server.stop()
