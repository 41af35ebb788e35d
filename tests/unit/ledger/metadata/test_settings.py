import pytest
from pydantic import ValidationError

from magnetar.ledger.metadata.settings import MetadataSettings


def test_a_client_certificate_may_hold_its_key() -> None:
    settings = MetadataSettings(
        zookeeper_tls_ca_file="ca.pem", zookeeper_tls_certificate_file="both.pem"
    )
    assert settings.zookeeper_tls_key_file == ""


@pytest.mark.parametrize(
    ("settings", "error"),
    [
        ({"zookeeper_tls_certificate_file": "c.pem"}, "needs zookeeper_tls_ca_file"),
        (
            {"zookeeper_tls_ca_file": "ca.pem", "zookeeper_tls_key_file": "k.pem"},
            "zookeeper_tls_key_file needs zookeeper_tls_certificate_file",
        ),
    ],
)
def test_a_file_that_would_not_be_used_is_refused(settings: dict[str, str], error: str) -> None:
    with pytest.raises(ValidationError, match=error):
        MetadataSettings.model_validate(settings)
