"""Query parameters of producers, consumers and readers, checked. Pure.

Unknown parameters are ignored; numbers and names that are none give 400. Source: WebSocket sheet,
sections 3 to 5.
"""

import binascii
import re
from base64 import b64decode
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Final, TypeVar

from magnetar.broker.websocket.encryption import EncryptionKey, parse_keys
from magnetar.broker.websocket.errors import UpgradeRefusedError
from magnetar.sdk.message_id import MessageId
from magnetar.sdk.settings import InitialPosition, SubscriptionType
from magnetar.sdk.wire.compression import Compression
from magnetar.sdk.wire.errors import MalformedPayloadError

ACK_TIMEOUT_MS_MIN: Final = 1_000
"""Shorter ones are refused, as Pulsar's client does; 0 is off."""
_INT_MAX = (1 << 31) - 1
_LONG_MAX = (1 << 63) - 1
_DAY_MS = 86_400_000
_NUMBER = re.compile(r"[+-]?[0-9]{1,19}", re.ASCII)
_Value = TypeVar("_Value")


class HashingScheme(Enum):
    """How a key chooses a partition."""

    JAVA_STRING = "JavaStringHash"
    MURMUR3 = "Murmur3_32Hash"


class RoutingMode(Enum):
    """How a message without a key chooses a partition."""

    SINGLE = "SinglePartition"
    ROUND_ROBIN = "RoundRobinPartition"


class CryptoFailureAction(Enum):
    """What a consumer without keys does with encrypted messages."""

    FAIL = "FAIL"
    DISCARD = "DISCARD"
    CONSUME = "CONSUME"


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerParameters:
    """Of `/producer/`."""

    name: str
    first_sequence_id: int | None
    hashing: HashingScheme
    routing: RoutingMode
    send_timeout_ms: int
    batching: bool
    batch_messages_max: int
    batch_delay_ms: int
    pending_messages_max: int | None
    compression: Compression
    encryption_keys: tuple[EncryptionKey, ...]
    """Its client encrypts the messages; empty: it does not."""
    encodes_text: bool
    """Payloads are text, to be encoded by the topic's schema."""

    @classmethod
    def of(cls, query: Mapping[str, str]) -> "ProducerParameters":
        """Raises: UpgradeRefusedError: 400."""
        encodes_text = query.get("encodeBySchema", "").lower() == "true"
        if encodes_text and query.get("encryptionKeys"):
            raise UpgradeRefusedError(
                400, "encodeBySchema: who encrypts messages encodes them before"
            )
        first = _number(query, "initialSequenceId", -1, _LONG_MAX - 1)
        routing = query.get("messageRoutingMode", "")
        batching = query.get("batchingEnabled", "").lower() == "true"
        read = query if batching else {}
        return cls(
            name=query.get("producerName", ""),
            first_sequence_id=None if first is None else first + 1,
            hashing=_choice(query, "hashingScheme", _BY_HASHING, HashingScheme.JAVA_STRING),
            routing=(
                RoutingMode.SINGLE
                if routing == "CustomPartition"
                else _choice(query, "messageRoutingMode", _BY_ROUTING, RoutingMode.SINGLE)
            ),
            send_timeout_ms=min(_DAY_MS, _default(query, "sendTimeoutMillis", 0, 30_000)),
            batching=batching,
            batch_messages_max=min(1_000_000, _default(read, "batchingMaxMessages", 1, 1000)),
            batch_delay_ms=min(60_000, _default(read, "batchingMaxPublishDelay", 0, 1)),
            pending_messages_max=_number(read, "maxPendingMessages", 0, _INT_MAX) or None,
            compression=_choice(query, "compressionType", _BY_COMPRESSION, Compression.NONE),
            encryption_keys=parse_keys(query.get("encryptionKeys", "")),
            encodes_text=encodes_text,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerParameters:
    """Of `/consumer/`, and of `/reader/` as far as it goes."""

    name: str
    subscription_type: SubscriptionType
    durable: bool
    initial_position: InitialPosition
    queue_messages: int
    """0 means a window of 1."""
    priority_level: int
    ack_timeout_ms: int
    nack_delay_ms: int
    redeliveries_max: int | None
    """Beyond it a message is a dead letter; None: never."""
    dead_letter_topic: str
    """Empty: `{topic}-{subscription}-DLQ`."""
    dead_letter_subscription: str
    """A subscription that the dead letter topic has before its first message; empty: none."""
    pull: bool
    on_encrypted: CryptoFailureAction

    @classmethod
    def of(cls, query: Mapping[str, str], *, queue_max: int) -> "ConsumerParameters":
        """`queue_max` cuts `receiverQueueSize`. Raises: UpgradeRefusedError: 400."""
        ack_timeout_ms = _default(query, "ackTimeoutMillis", 0, 0, most=_LONG_MAX)
        if 0 < ack_timeout_ms < ACK_TIMEOUT_MS_MIN:
            raise UpgradeRefusedError(
                400, f"ackTimeoutMillis: 0, or {ACK_TIMEOUT_MS_MIN} and more: {ack_timeout_ms}"
            )
        return cls(
            name=query.get("consumerName", ""),
            subscription_type=_choice(
                query, "subscriptionType", _BY_TYPE, SubscriptionType.EXCLUSIVE
            ),
            durable=_choice(query, "subscriptionMode", _BY_MODE, True),
            initial_position=_choice(
                query, "subscriptionInitialPosition", _BY_POSITION, InitialPosition.LATEST
            ),
            queue_messages=_queue(query, queue_max),
            priority_level=_default(query, "priorityLevel", 0, 0, most=1_000),
            ack_timeout_ms=ack_timeout_ms,
            nack_delay_ms=min(_DAY_MS, _default(query, "negativeAckRedeliveryDelay", 0, 60_000)),
            redeliveries_max=_number(query, "maxRedeliverCount", 1, _INT_MAX),
            dead_letter_topic=query.get("deadLetterTopic", ""),
            dead_letter_subscription=query.get("deadLetterInitialSubscription", ""),
            pull=query.get("pullMode", "").lower() == "true",
            on_encrypted=_crypto(query),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ReaderParameters:
    """Of `/reader/`."""

    name: str
    queue_messages: int
    start: MessageId
    on_encrypted: CryptoFailureAction

    @classmethod
    def of(cls, query: Mapping[str, str], *, queue_max: int) -> "ReaderParameters":
        """`queue_max` cuts `receiverQueueSize`. Raises: UpgradeRefusedError: 400."""
        return cls(
            name=query.get("readerName", ""),
            queue_messages=_queue(query, queue_max),
            start=_start(query.get("messageId", "latest")),
            on_encrypted=_crypto(query),
        )


def parse_message_id(text: str) -> MessageId:
    """Base64 of a serialized id, as messages carry it.

    Raises:
        MalformedPayloadError: it is none.
    """
    try:
        data = b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:
        raise MalformedPayloadError(f"no base64: {error}") from error
    message_id = MessageId.from_bytes(data)
    if message_id.batch_index < -1 or message_id.batch_size < 0:
        raise MalformedPayloadError("a message id with a negative index")
    return message_id


def _start(text: str) -> MessageId:
    if text == "earliest":
        return MessageId.EARLIEST
    if text == "latest":
        return MessageId.LATEST
    try:
        # A plus sign that was not encoded arrives as a blank.
        return parse_message_id(text.replace(" ", "+"))
    except MalformedPayloadError as error:
        raise UpgradeRefusedError(
            400, f"messageId: earliest, latest or the base64 of an id: {error}"
        ) from error


def _queue(query: Mapping[str, str], most: int) -> int:
    return min(most, _default(query, "receiverQueueSize", 0, most))


def _crypto(query: Mapping[str, str]) -> CryptoFailureAction:
    """Values that are none are ignored."""
    return _BY_CRYPTO.get(query.get("cryptoFailureAction", ""), CryptoFailureAction.FAIL)


def _default(
    query: Mapping[str, str], name: str, least: int, default: int, *, most: int = _INT_MAX
) -> int:
    value = _number(query, name, least, most)
    return default if value is None else value


def _number(query: Mapping[str, str], name: str, least: int, most: int) -> int | None:
    text = query.get(name)
    if text is None:
        return None
    value = int(text) if _NUMBER.fullmatch(text) else None
    if value is None or not least <= value <= most:
        raise UpgradeRefusedError(400, f"{name}: a number from {least} to {most}: {text[:100]!r}")
    return value


def _choice(
    query: Mapping[str, str], name: str, values: Mapping[str, _Value], default: _Value
) -> _Value:
    text = query.get(name)
    if text is None:
        return default
    if text not in values:
        raise UpgradeRefusedError(400, f"{name}: one of {', '.join(values)}: {text[:100]!r}")
    return values[text]


_BY_HASHING = {each.value: each for each in HashingScheme}
_BY_ROUTING = {each.value: each for each in RoutingMode}
_BY_CRYPTO = {each.value: each for each in CryptoFailureAction}
_BY_COMPRESSION = {name: Compression[name] for name in ("NONE", "LZ4", "ZLIB", "ZSTD", "SNAPPY")}
_BY_MODE = {"Durable": True, "NonDurable": False}
_BY_POSITION = {"Latest": InitialPosition.LATEST, "Earliest": InitialPosition.EARLIEST}
_BY_TYPE = {
    "Exclusive": SubscriptionType.EXCLUSIVE,
    "Shared": SubscriptionType.SHARED,
    "Failover": SubscriptionType.FAILOVER,
    "Key_Shared": SubscriptionType.KEY_SHARED,
}
