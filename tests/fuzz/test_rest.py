"""The HTTP interface takes whatever fits its description, and whatever does not, without a 5xx."""

from pathlib import Path

from tests.fuzz.rest import fuzz, operations_of
from tests.standalone import Standalone

SEED = 20_261
SHARE = 6
"""Of every so many operations one is asked here; `python -m tests.fuzz.rest` asks all."""


def test_no_request_ends_in_a_server_error(tmp_path: Path) -> None:
    with Standalone(tmp_path / "data") as server:
        operations = operations_of(server.http_url)
        result = fuzz(
            server.http_url, operations[::SHARE], examples=1, seconds=20.0, first_seed=SEED
        )
        assert not result.findings, "\n".join(result.findings)
        assert result.requests > 0
        assert server.terminate() == 0
        server.assert_log_clean()
