"""Settings refuse what cannot work, at the bound and beyond it."""

import pytest

from magnetar.sdk.settings import (
    AccessMode,
    ClientSettings,
    ConsumerSettings,
    ProducerSettings,
    ReaderSettings,
    SubscriptionType,
)
from magnetar.sdk.wire.pulsar_pb2 import CommandSubscribe, ProducerAccessMode


def test_values_at_the_bound_pass() -> None:
    ProducerSettings(pending_messages_max=1, batch_messages_max=1, send_timeout_ms=0)
    ConsumerSettings(receiver_queue_messages=1, ack_group_ms=0, nack_delay_ms=0)
    ReaderSettings(receiver_queue_messages=1)
    ClientSettings(reconnect_delay_min_ms=5, reconnect_delay_max_ms=5)


def test_values_beyond_it_do_not() -> None:
    with pytest.raises(ValueError, match="pending_messages_max"):
        ProducerSettings(pending_messages_max=0)
    with pytest.raises(ValueError, match="receiver_queue_messages"):
        ConsumerSettings(receiver_queue_messages=0)
    with pytest.raises(ValueError, match="receiver_queue_messages"):
        ReaderSettings(receiver_queue_messages=0)
    with pytest.raises(ValueError, match="reconnect_delay_max_ms"):
        ClientSettings(reconnect_delay_min_ms=5, reconnect_delay_max_ms=4)


def test_secrets_are_not_shown() -> None:
    assert "hush" not in repr(ClientSettings(auth_data=b"hush"))


def test_all_names_have_a_number_on_the_wire() -> None:
    assert {kind.wire for kind in SubscriptionType} <= set(CommandSubscribe.SubType.values())
    assert {mode.wire for mode in AccessMode} == set(ProducerAccessMode.values())
