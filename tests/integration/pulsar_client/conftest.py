"""One standalone server for the tests of this folder that do not kill it."""

import itertools
from collections.abc import Iterator

import pulsar
import pytest

from tests.flights import read_flights
from tests.integration.pulsar_client.support import connect
from tests.standalone import Standalone

_numbers = itertools.count()


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Standalone]:
    with Standalone(tmp_path_factory.mktemp("standalone") / "data") as standalone:
        yield standalone
        assert standalone.process.returncode is None, "the server ended during the tests"
        assert standalone.terminate() == 0
        standalone.assert_log_clean()


@pytest.fixture
def client(server: Standalone) -> Iterator[pulsar.Client]:
    connection = connect(server.url, log_path=server.log_path.with_suffix(".client.log"))
    yield connection
    connection.close()


@pytest.fixture
def topic() -> str:
    """A topic of its own for each test."""
    return f"persistent://public/default/topic-{next(_numbers)}"


@pytest.fixture(scope="session")
def flights() -> list[bytes]:
    return list(read_flights())


# Of modules that have two clusters, by a fixture `clusters` of their own.


@pytest.fixture
def east(clusters: tuple[Standalone, Standalone]) -> Standalone:
    return clusters[0]


@pytest.fixture
def west(clusters: tuple[Standalone, Standalone]) -> Standalone:
    return clusters[1]


@pytest.fixture
def at_east(east: Standalone) -> Iterator[pulsar.Client]:
    client = connect(east.url)
    yield client
    client.close()


@pytest.fixture
def at_west(west: Standalone) -> Iterator[pulsar.Client]:
    client = connect(west.url)
    yield client
    client.close()
