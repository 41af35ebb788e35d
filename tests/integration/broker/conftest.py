"""One standalone server for the tests of this folder that neither kill nor configure it."""

from collections.abc import Iterator

import pytest

from tests.standalone import Standalone


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Standalone]:
    with Standalone(tmp_path_factory.mktemp("broker") / "data") as standalone:
        yield standalone
        assert standalone.process.returncode is None, "the server ended during the tests"
        assert standalone.terminate() == 0
        standalone.assert_log_clean()
