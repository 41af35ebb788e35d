"""The client over WebSocket refuses what it cannot do, before it connects."""

from typing import Any

import pytest

from magnetar.sdk import (
    AccessMode,
    ClientSettings,
    ConsumerSettings,
    KeySharedPolicy,
    MessageId,
    ProducerSettings,
    ReaderSettings,
    SubscriptionType,
)
from magnetar.sdk.encryption import CryptoFailureAction, FileKeyReader
from magnetar.sdk.errors import NotSupportedError
from magnetar.sdk.producing.routing import Hashing
from magnetar.sdk.web_socket import WebSocketClient
from magnetar.sdk.wire.errors import SdkError

KEYS = FileKeyReader("public.pem", "private.pem")
UNREACHABLE = "ws://127.0.0.1:1"
QUICK = ClientSettings(operation_timeout_ms=1)


@pytest.mark.parametrize(
    "setting",
    [
        {"key_reader": KEYS},
        {"crypto_failure_action": CryptoFailureAction.CONSUME},
        {"read_compacted": True},
        {"start_inclusive": True},
        {"durable": False, "start_message_id": MessageId(1, 2)},
        {"key_shared": KeySharedPolicy(hash_ranges=((0, 9),))},
        {"subscription_type": SubscriptionType.SHARED, "retry_topic": True},
        {"nack_delay_multiplier": 2.0},
        {"create_topic": False},
        {"subscription_properties": {"a": "b"}},
        {"decompressed_bytes_max": 1},
        {"acknowledge_incomplete_chunks": True},
    ],
)
async def test_a_consumer_refuses_settings_that_would_have_no_effect(
    setting: dict[str, Any],
) -> None:
    async with WebSocketClient(UNREACHABLE, QUICK) as web:
        with pytest.raises(NotSupportedError, match=list(setting)[-1]):
            await web.consumer("t", "s", ConsumerSettings(**setting))


@pytest.mark.parametrize(
    "setting",
    [
        {"start_inclusive": True},
        {"hash_ranges": ((0, 9),)},
        {"key_reader": KEYS},
        {"read_compacted": True},
    ],
)
async def test_a_reader_refuses_settings_that_would_have_no_effect(setting: dict[str, Any]) -> None:
    async with WebSocketClient(UNREACHABLE, QUICK) as web:
        with pytest.raises(NotSupportedError, match=next(iter(setting))):
            await web.reader("t", settings=ReaderSettings(**setting))


@pytest.mark.parametrize(
    "setting",
    [
        {"key_reader": KEYS, "encryption_keys": ("k",)},
        {"access_mode": AccessMode.EXCLUSIVE},
        {"chunking": True},
        {"hashing": Hashing.MURMUR3},
        {"initial_subscription": "s"},
    ],
)
async def test_a_producer_refuses_settings_that_would_have_no_effect(
    setting: dict[str, Any],
) -> None:
    async with WebSocketClient(UNREACHABLE, QUICK) as web:
        with pytest.raises(NotSupportedError, match=list(setting)[-1]):
            await web.producer("t", ProducerSettings(**setting))


async def test_settings_that_only_tune_the_other_protocol_are_no_error() -> None:
    async with WebSocketClient(UNREACHABLE, QUICK) as web:
        with pytest.raises(SdkError) as caught:
            await web.consumer("t", "s", ConsumerSettings(ack_group_ms=0, batch_index_ack=True))
        assert not isinstance(caught.value, NotSupportedError)
