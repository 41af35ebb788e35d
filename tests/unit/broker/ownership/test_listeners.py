"""Advertised listeners as they are written in the settings."""

import pytest
from pydantic import ValidationError

from magnetar.broker.base.listeners import host_and_port, parse_listeners
from magnetar.broker.base.settings.broker import BrokerSettings


def test_listeners_keep_their_order() -> None:
    text = "internal:pulsar://10.0.0.1:6650, external:pulsar://broker.example:6651"
    assert list(parse_listeners(text).items()) == [
        ("internal", "pulsar://10.0.0.1:6650"),
        ("external", "pulsar://broker.example:6651"),
    ]
    assert parse_listeners("") == {}


@pytest.mark.parametrize(
    "text",
    [
        "pulsar://host:6650",
        "a:host:6650",
        "a:pulsar://host",
        "a:pulsar://host:0",
        "a:pulsar://host:66500",
        "a:pulsar://x:1,a:pulsar://y:2",
        "a b:pulsar://x:1",
    ],
)
def test_other_forms_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="listener"):
        parse_listeners(text)
    with pytest.raises(ValidationError):
        BrokerSettings(advertised_listeners=text)


def test_the_default_listener_must_be_one_of_them() -> None:
    with pytest.raises(ValidationError, match="default_listener"):
        BrokerSettings(advertised_listeners="a:pulsar://x:1", default_listener="b")


def test_hosts_and_ports() -> None:
    assert host_and_port("pulsar://[::1]:6650") == ("::1", 6650)
    assert host_and_port("pulsar://broker-1.example:6650") == ("broker-1.example", 6650)
