"""The settings and how they constrain each other."""

from typing import Any

import pytest
from pydantic import ValidationError

from magnetar.broker.base.settings.broker import BrokerSettings
from magnetar.ledger.settings import LedgerSettings


def test_a_thousand_messages_in_flight_are_not_throttled() -> None:
    settings = BrokerSettings()
    assert settings.publishes_per_connection_max > 1000
    # In bytes a pause of reading costs nothing, as long as the disk is kept busy meanwhile.
    assert settings.publish_bytes_per_connection_max >= 16 << 20


def test_one_publisher_alone_cannot_use_up_what_the_ledger_client_takes() -> None:
    settings = BrokerSettings()
    assert settings.publish_bytes_per_connection_max * 2 <= settings.publish_bytes_max
    assert settings.publish_bytes_max * 2 <= LedgerSettings().channel_bytes_max


@pytest.mark.parametrize(
    "values",
    [
        {"ack_quorum": 2},
        {"ensemble_size": 2, "write_quorum": 3},
        {"write_buffer_bytes_max": 5000, "write_buffer_bytes_high": 6000},
        {"port": 70_000},
        {"publish_bytes_max": 1000},
    ],
)
def test_what_does_not_fit_is_refused(values: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        BrokerSettings(**values)


def test_the_environment_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MAGNETAR_BROKER_FAILOVER_DELAY_MS", "7")
    assert BrokerSettings().failover_delay_ms == 7


def test_a_key_in_the_place_of_its_id_is_refused_and_not_shown() -> None:
    secret = bytes(range(32)).hex()
    with pytest.raises(ValidationError, match="object_key_id is the id of a key") as caught:
        BrokerSettings(object_key_file="/keys", object_key_id=secret)
    assert secret not in caught.value.errors()[0]["msg"]
    assert BrokerSettings(object_key_file="/keys", object_key_id=secret[1:]).object_key_id
