"""One secured server for all tests here."""

from collections.abc import Iterator

import pytest

from tests.integration.broker.security.secured import Secured


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    running = Secured(tmp_path_factory.mktemp("secured") / "data")
    with running:
        running.make_tenant("acme", "acme-admin", "basil")
        running.make_tenant("other", "other-admin")
        yield running
        running.assert_log_clean()
        text = running.log_text()
        for secret in ("open sesame", "a secret of thirty-two", "eyJ", "PRIVATE KEY"):
            assert secret not in text, f"the log holds {secret!r}"
