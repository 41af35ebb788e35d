"""The settings and how they constrain each other."""

from typing import Any

import pytest
from pydantic import ValidationError

from magnetar.broker.settings import BrokerSettings


def test_a_thousand_messages_in_flight_are_not_throttled() -> None:
    settings = BrokerSettings()
    assert settings.publishes_per_connection_max > 1000
    assert settings.publish_bytes_per_connection_max > 1000 * 100_000
    assert settings.publish_bytes_max >= settings.publish_bytes_per_connection_max


@pytest.mark.parametrize(
    "values",
    [
        {"ack_quorum": 2},
        {"ensemble_size": 2, "write_quorum": 3},
        {"write_buffer_bytes_max": 5000, "write_buffer_bytes_high": 6000},
        {"port": 70_000},
    ],
)
def test_what_does_not_fit_is_refused(values: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        BrokerSettings(**values)


def test_the_environment_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MAGNETAR_BROKER_FAILOVER_DELAY_MS", "7")
    assert BrokerSettings().failover_delay_ms == 7
