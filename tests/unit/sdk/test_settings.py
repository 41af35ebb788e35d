"""Settings refuse what cannot work, at the bound and beyond it."""

from typing import Any

import pytest

from magnetar.sdk import Client
from magnetar.sdk.settings import (
    AccessMode,
    ClientSettings,
    ConsumerSettings,
    ProducerSettings,
    ReaderSettings,
    SubscriptionType,
)
from magnetar.sdk.wire.batches import BATCH_MESSAGES_MAX
from magnetar.sdk.wire.pulsar_pb2 import CommandSubscribe, ProducerAccessMode


def test_values_at_the_bound_pass() -> None:
    ProducerSettings(pending_messages_max=1, batch_messages_max=1, send_timeout_ms=0)
    ConsumerSettings(receiver_queue_messages=1, ack_group_ms=0, nack_delay_ms=0)
    ReaderSettings(receiver_queue_messages=1)
    ClientSettings(reconnect_delay_min_ms=5, reconnect_delay_max_ms=5)


def test_a_producer_makes_no_batches_that_consumers_refuse() -> None:
    ProducerSettings(batch_messages_max=BATCH_MESSAGES_MAX)
    with pytest.raises(ValueError, match="batch_messages_max"):
        ProducerSettings(batch_messages_max=BATCH_MESSAGES_MAX + 1)


def test_values_beyond_it_do_not() -> None:
    with pytest.raises(ValueError, match="pending_messages_max"):
        ProducerSettings(pending_messages_max=0)
    with pytest.raises(ValueError, match="receiver_queue_messages"):
        ConsumerSettings(receiver_queue_messages=0)
    with pytest.raises(ValueError, match="receiver_queue_messages"):
        ReaderSettings(receiver_queue_messages=0)
    with pytest.raises(ValueError, match="reconnect_delay_max_ms"):
        ClientSettings(reconnect_delay_min_ms=5, reconnect_delay_max_ms=4)


WRONG: list[tuple[type, dict[str, object], str]] = [
    (ProducerSettings, {"compression": "lz4"}, "compression is 'lz4'; .*Compression.LZ4"),
    (ProducerSettings, {"access_mode": "Exclusive"}, "access_mode is .*AccessMode.EXCLUSIVE"),
    (ProducerSettings, {"routing": "single"}, "routing is .*RoutingMode.SINGLE_PARTITION"),
    (ProducerSettings, {"hashing": 3}, "hashing is 3; .*Hashing.MURMUR3"),
    (ConsumerSettings, {"subscription_type": "Shared"}, "subscription_type .*Type.SHARED"),
    (ConsumerSettings, {"initial_position": "earliest"}, "initial_position .*Position.EARLIEST"),
    (
        ConsumerSettings,
        {"dead_letters": "t", "subscription_type": SubscriptionType.SHARED},
        r"dead_letters is 't'; it is a DeadLetterPolicy\(…\)",
    ),
    (
        ConsumerSettings,
        {"durable": False, "replicate_subscription_state": True},
        "replicate_subscription_state needs durable=True",
    ),
]


@pytest.mark.parametrize(("kind", "values", "message"), WRONG)
def test_what_is_of_another_kind_is_refused_and_says_what_is_allowed(
    kind: type, values: dict[str, object], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        kind(**values)


async def test_settings_of_something_else_are_refused() -> None:
    client = Client()
    wrong: Any = {"name": "x"}
    with pytest.raises(TypeError, match=r"settings must be a ProducerSettings\(…\), not dict"):
        await client.producer("t", wrong)
    wrong = ReaderSettings()
    with pytest.raises(TypeError, match=r"ConsumerSettings\(…\), not ReaderSettings"):
        await client.consumer("t", "s", wrong)
    await client.close()


def test_secrets_are_not_shown() -> None:
    assert "hush" not in repr(ClientSettings(auth_data=b"hush"))


def test_all_names_have_a_number_on_the_wire() -> None:
    assert {kind.wire for kind in SubscriptionType} <= set(CommandSubscribe.SubType.values())
    assert {mode.wire for mode in AccessMode} == set(ProducerAccessMode.values())
