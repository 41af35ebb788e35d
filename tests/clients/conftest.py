"""One standalone server for the clients of other code bases."""

from collections.abc import Iterator

import pytest

from tests.standalone import Standalone


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Standalone]:
    with Standalone(tmp_path_factory.mktemp("clients") / "data") as standalone:
        yield standalone
        assert standalone.terminate() == 0
        standalone.assert_log_clean()
