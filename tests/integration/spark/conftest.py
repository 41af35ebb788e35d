"""One server and one Spark session for all tests of this folder that do not kill theirs."""

import itertools
from collections.abc import Iterator

import pulsar
import pytest
from pyspark.sql import SparkSession

from tests.integration.spark.support import keep_topics, make_session
from tests.standalone import Standalone

_numbers = itertools.count()


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Standalone]:
    directory = tmp_path_factory.mktemp("spark-standalone") / "data"
    with Standalone(directory, arguments=("--bookies", "2", "--quorum", "2,2,2")) as standalone:
        keep_topics(standalone)
        yield standalone
        assert standalone.process.returncode is None, "the server ended during the tests"
        assert standalone.terminate() == 0
        standalone.assert_log_clean()


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    session = make_session("local[2]", tmp_path_factory.mktemp("spark"))
    yield session
    session.stop()


@pytest.fixture
def client(server: Standalone) -> Iterator[pulsar.Client]:
    log = pulsar.FileLogger(pulsar.LoggerLevel.Warn, str(server.log_path.with_suffix(".client")))
    connection = pulsar.Client(server.url, logger=log)
    yield connection
    connection.close()


@pytest.fixture
def topic() -> str:
    """A topic of its own for each test."""
    return f"persistent://public/default/spark-{next(_numbers)}"
