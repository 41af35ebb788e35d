"""Host names that a broker answers to if it does not authenticate clients."""

from typing import Any

import pytest

from magnetar.broker.base.settings.broker import BrokerSettings
from magnetar.broker.security.host_names import is_own_name, own_names


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        (None, True),
        ("localhost:8080", True),
        ("LocalHost", True),
        ("localhost.:8080", True),
        ("broker.example.", True),
        ("localhost..", False),
        ("a.localhost", True),
        ("127.0.0.1", True),
        ("[::1]:8080", True),
        ("192.0.2.7:80", True),
        ("broker.example:1", True),
        ("Listed.example", True),
        ("outside.example:8080", True),
        ("evil.example", False),
        ("localhost.evil.example", False),
        ("127.0.0.1.evil.example", False),
        ("xlocalhost", False),
        ("evil.example:@localhost", True),  # what is before @ is no name
        ("", False),
        ("[::1", False),
    ],
)
def test_without_authentication_a_broker_at_loopback_answers_to_its_own_names(
    host: str | None, expected: bool
) -> None:
    settings = BrokerSettings(
        advertised_host="broker.example",
        advertised_listeners="out:pulsar://outside.example:6650",
        websocket_origins="https://listed.example:8443, x",
    )
    assert is_own_name(host, own_names(settings)) is expected


@pytest.mark.parametrize(
    "settings",
    [
        {"host": "0.0.0.0"},
        {"plain_host": "0.0.0.0"},
        {"host": "0.0.0.0", "plain_host": "::1", "https_port": 0},
        {"tls_auth": True},
        {"websocket_origins": "a, *"},
    ],
)
def test_a_broker_that_others_are_to_reach_answers_to_all_names(
    settings: dict[str, Any],
) -> None:
    assert own_names(BrokerSettings.model_construct(**settings)) is None


def test_only_addresses_count_that_it_listens_on() -> None:
    """With none but plain ports nothing listens on `host`."""
    settings = BrokerSettings(host="0.0.0.0", plain_host="127.0.0.1")
    assert settings.addresses == ("127.0.0.1",)
    assert not is_own_name("evil.example", own_names(settings))


def test_a_broker_that_lets_strangers_in_beside_those_it_knows_answers_to_its_own_names() -> None:
    settings = BrokerSettings.model_construct(tls_auth=True, anonymous_role="guest")
    assert not is_own_name("evil.example", own_names(settings))


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        ("host.docker.internal:8080", True),
        ("Broker-1:8080", True),
        ("127.0.0.1", True),
        ("advertised", True),
        ("evil.example", False),
    ],
)
@pytest.mark.parametrize("origins", ["", "*"])
def test_listed_names_count_whatever_the_broker_listens_on(
    host: str, expected: bool, origins: str
) -> None:
    settings = BrokerSettings(
        host="0.0.0.0",
        http_names="broker-1, host.docker.internal",
        advertised_host="advertised",
        websocket_origins=origins,
    )
    assert is_own_name(host, own_names(settings)) is expected


def test_who_knows_everybody_needs_no_names() -> None:
    settings = BrokerSettings.model_construct(tls_auth=True, http_names="broker-1")
    assert own_names(settings) is None
