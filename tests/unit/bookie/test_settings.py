from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from magnetar.bookie.settings import BookieSettings


def test_the_bookie_id_defaults_to_the_advertised_address() -> None:
    settings = BookieSettings(data_directory=Path("d"), port=3181, advertised_host="b.example")
    assert settings.effective_bookie_id == "b.example:3181"


def test_a_port_that_changes_needs_a_bookie_id() -> None:
    with pytest.raises(ValidationError, match="needs a bookie_id"):
        BookieSettings(data_directory=Path("d"), port=0)


def test_a_group_must_fit_into_the_queue() -> None:
    with pytest.raises(ValidationError, match="journal_group_bytes_max"):
        BookieSettings(
            data_directory=Path("d"),
            journal_group_bytes_max=2 << 20,
            journal_queue_bytes_max=1 << 20,
        )


@pytest.mark.parametrize("name", ["a/b", "a b", "ä"])
def test_a_bookie_id_is_a_plain_name(name: str) -> None:
    with pytest.raises(ValidationError):
        BookieSettings(data_directory=Path("d"), bookie_id=name)


@pytest.mark.parametrize(
    ("values", "asks"),
    [
        ({}, False),
        ({"insecure": True}, False),
        ({"shared_secret_file": "/s"}, True),
        ({"shared_secret_file": "/s", "shared_secret_optional": True}, False),
        ({"tls_certificate_file": "/c", "tls_key_file": "/k", "tls_ca_file": "/a"}, True),
    ],
)
def test_a_secret_or_certificates_keep_strangers_out(values: dict[str, Any], asks: bool) -> None:
    settings = BookieSettings(data_directory=Path("d"), **values)
    assert settings.asks_for_proof is asks


def test_a_secret_is_made_at_an_absolute_path_only() -> None:
    """A relative path might be the secret itself, given where its file is expected."""
    with pytest.raises(ValidationError, match="absolute path"):
        BookieSettings(
            data_directory=Path("d"), shared_secret_file="a" * 32, shared_secret_create=True
        )
