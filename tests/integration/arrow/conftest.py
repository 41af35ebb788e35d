"""One server for all tests of this folder that do not kill theirs."""

import itertools
from collections.abc import Iterator

import pulsar
import pytest

from tests.integration.arrow.support import keep_topics
from tests.integration.pulsar_client.support import connect
from tests.standalone import Standalone

_numbers = itertools.count()


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Standalone]:
    directory = tmp_path_factory.mktemp("arrow-standalone") / "data"
    with Standalone(directory, arguments=("--bookies", "2", "--quorum", "2,2,2")) as standalone:
        keep_topics(standalone)
        yield standalone
        assert standalone.process.returncode is None, "the server ended during the tests"
        assert standalone.terminate() == 0
        standalone.assert_log_clean()


@pytest.fixture
def client(server: Standalone) -> Iterator[pulsar.Client]:
    connection = connect(server.url, log_path=server.log_path.with_suffix(".client"))
    yield connection
    connection.close()


@pytest.fixture
def topic() -> str:
    """A topic of its own for each test."""
    return f"persistent://public/default/arrow-{next(_numbers)}"
