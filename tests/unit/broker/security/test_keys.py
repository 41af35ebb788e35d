"""Keys out of settings: what an error says of one that cannot be read."""

from pathlib import Path

import pytest

from magnetar.broker.security.keys import SecurityConfigError, read_key

TOKEN = "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiJhZG1pbiJ9.O2H0nnV3oaQ7vHkBP3yqBl2S9fHbWJcvXlm0wTgKbLk"


def missing(path: str) -> bytes:
    raise FileNotFoundError(2, "No such file or directory")


@pytest.mark.parametrize(
    "given",
    [TOKEN, f"/{TOKEN}", "/q83vEjRWeJASNFZ4kBI0Vn/iQEjRWeJASNFZ4kBI0U=", "a-secret-of-a-person"],
)
def test_a_secret_that_is_given_where_a_file_is_expected_is_not_shown(given: str) -> None:
    with pytest.raises(SecurityConfigError) as caught:
        read_key(given, missing, what="broker_client_token")
    shown = repr(caught.value) + repr(caught.value.__cause__)
    assert "broker_client_token" in shown
    assert all(part not in shown for part in given.split("/") if len(part) > 8)


def test_a_path_into_a_folder_that_is_there_is_shown(tmp_path: Path) -> None:
    path = str(tmp_path / "token.key")
    with pytest.raises(SecurityConfigError, match=f"token_secret_key: cannot read {path}: No such"):
        read_key(f"file://{path}", missing, what="token_secret_key")
