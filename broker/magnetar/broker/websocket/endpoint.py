"""Parse a request target: producer, consumer or reader, its topics, and its parameters. Pure.

`/ws/v2/{producer,reader}/{domain}/{tenant}/{namespace}/{topic}`,
`/ws/v2/consumer/{domain}/{tenant}/{namespace}/{topic}/{subscription}`, and
`/ws/v3/consumer/{subscription}?topics=a,b` or `?topicsPattern=…`.

Unknown query parameters are ignored; invalid numbers and names give 400. Source: WebSocket sheet,
sections 1 and 3 to 5.
"""

import binascii
import re
from base64 import b64decode
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from types import MappingProxyType
from typing import Any, Final, TypeVar
from urllib.parse import parse_qsl, unquote_plus

import re2

from magnetar.broker.websocket.encryption import EncryptionKey, parse_keys
from magnetar.broker.websocket.errors import UpgradeRefusedError
from magnetar.sdk.message_id import MessageId
from magnetar.sdk.settings import InitialPosition, SubscriptionType
from magnetar.sdk.wire.batches import BATCH_MESSAGES_MAX
from magnetar.sdk.wire.compression import Compression
from magnetar.sdk.wire.errors import MalformedPayloadError, TopicNameError
from magnetar.sdk.wire.topic_name import NON_PERSISTENT, PERSISTENT, TopicName

QUERY_FIELDS_MAX: Final = 100
PATTERN_CHARACTERS_MAX: Final = 1024
_PATTERN_BYTES_MAX = 1 << 20
_BATCH_SIZE_MAX = 1 << 20
"""Messages of a batch in an id that a client sends. Acknowledgements take a bit for each, so a
false size would cost memory and time."""
_MULTI_TOPIC_PARTS = 5
_CONSUMER_PARTS = 9
_TOPIC_PARTS = 8


class Kind(Enum):
    """Kind of a session."""

    PRODUCER = "producer"
    CONSUMER = "consumer"
    READER = "reader"


@dataclass(frozen=True, slots=True)
class TopicPattern:
    """Topics of one namespace whose full names match an expression. RE2 matches in linear time."""

    text: str
    domain: str
    namespace: str
    """`tenant/namespace`."""

    def select(self, names: Sequence[str]) -> list[TopicName]:
        """Return the matching topics among full names; a partition counts as its topic."""
        pattern = _compile(self.text)
        topics = (TopicName.parse(name).partitioned for name in names)
        found = {
            topic: None
            for topic in topics
            if topic.domain == self.domain and pattern.fullmatch(str(topic))
        }
        return list(found)


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A parsed request target."""

    kind: Kind
    topics: tuple[TopicName, ...]
    """Topics by name; empty if a pattern chooses them."""
    subscription: str
    """Subscription of a consumer; empty for other kinds."""
    pattern: TopicPattern | None
    query: Mapping[str, str]

    @property
    def topic(self) -> TopicName:
        """Topic of a producer or reader."""
        return self.topics[0]


def parse_target(target: str) -> Endpoint:
    """Parse a request target: path and query, percent-encoded.

    Raises:
        UpgradeRefusedError: 404 if the path is not a WebSocket path, 400 if it has mistakes.
    """
    path, _, query_text = target.partition("?")
    parts = path.split("/")
    if parts[:2] != ["", "ws"]:
        raise UpgradeRefusedError(404, "WebSocket paths begin with /ws/v2/ or /ws/v3/")
    query = _query(query_text)
    version = parts[2] if len(parts) > 2 else ""
    if version == "v3":
        return _multi_topic(parts, query)
    if version != "v2":
        raise UpgradeRefusedError(
            400, "only /ws/v2/ and /ws/v3/ are known: v1 names have a cluster"
        )
    try:
        kind = Kind(parts[3] if len(parts) > 3 else "")
    except ValueError:
        raise UpgradeRefusedError(400, "after /ws/v2/: producer, consumer or reader") from None
    return _single_topic(kind, parts, query)


def _single_topic(kind: Kind, parts: list[str], query: Mapping[str, str]) -> Endpoint:
    is_consumer = kind is Kind.CONSUMER
    expected = _CONSUMER_PARTS if is_consumer else _TOPIC_PARTS
    if len(parts) != expected:
        last = "/topic/subscription" if is_consumer else "/topic"
        raise UpgradeRefusedError(
            400, f"the path is /ws/v2/{kind.value}/domain/tenant/namespace{last}"
        )
    domain, tenant, namespace, local_name = parts[4:8]
    if domain not in (PERSISTENT, NON_PERSISTENT):
        raise UpgradeRefusedError(
            400, f"the domain must be persistent or non-persistent: {domain!r}"
        )
    topic = _topic(f"{domain}://{_decoded(tenant)}/{_decoded(namespace)}/{_decoded(local_name)}")
    subscription = _subscription(parts[8]) if is_consumer else ""
    return Endpoint(kind, (topic,), subscription, None, query)


def _multi_topic(parts: list[str], query: Mapping[str, str]) -> Endpoint:
    if len(parts) != _MULTI_TOPIC_PARTS or parts[3] != Kind.CONSUMER.value:
        raise UpgradeRefusedError(400, "the path is /ws/v3/consumer/subscription")
    subscription = _subscription(parts[4])
    topics, pattern = query.get("topics", ""), query.get("topicsPattern", "")
    if bool(topics) == bool(pattern):
        raise UpgradeRefusedError(400, "exactly one of topics and topicsPattern is needed")
    if pattern:
        return Endpoint(Kind.CONSUMER, (), subscription, _pattern(pattern), query)
    names = dict.fromkeys(_topic(name.strip()) for name in topics.split(","))
    return Endpoint(Kind.CONSUMER, tuple(names), subscription, None, query)


def _topic(name: str) -> TopicName:
    try:
        return TopicName.parse(name)
    except TopicNameError as error:
        raise UpgradeRefusedError(400, str(error)) from error


def _pattern(text: str) -> TopicPattern:
    """Parse a full-name pattern: domain, tenant and namespace literally, then the expression."""
    if len(text) > PATTERN_CHARACTERS_MAX:
        raise UpgradeRefusedError(400, "the topicsPattern is too long")
    domain, separator, rest = text.partition("://")
    if not separator:
        domain, rest = PERSISTENT, text
    parts = rest.split("/", 2)
    if domain not in (PERSISTENT, NON_PERSISTENT) or len(parts) != 3:
        raise UpgradeRefusedError(
            400, "a topicsPattern must be domain://tenant/namespace/expression"
        )
    tenant, namespace, expression = parts
    _topic(f"{domain}://{tenant}/{namespace}/x")
    full = f"{re.escape(f'{domain}://{tenant}/{namespace}/')}(?:{expression})"
    try:
        _compile(full)
    except re2.error as error:
        raise UpgradeRefusedError(400, f"topicsPattern: {error}") from error
    return TopicPattern(full, domain, f"{tenant}/{namespace}")


def _compile(text: str) -> Any:
    options = re2.Options()
    options.log_errors = False
    options.max_mem = _PATTERN_BYTES_MAX
    return re2.compile(text, options)


def _subscription(part: str) -> str:
    name = _decoded(part)
    if not name.strip():
        raise UpgradeRefusedError(400, "the subscription is empty")
    return name


def _decoded(part: str) -> str:
    """Decode a part of the path. `+` is a blank, as in the form encoding of Java's clients."""
    try:
        return unquote_plus(part, errors="strict")
    except UnicodeDecodeError:
        raise UpgradeRefusedError(400, "a part of the path is not UTF-8") from None


def _query(text: str) -> Mapping[str, str]:
    """Parse the query; of a parameter given twice, the first value counts."""
    try:
        pairs = parse_qsl(
            text, keep_blank_values=True, errors="strict", max_num_fields=QUERY_FIELDS_MAX
        )
    except ValueError as error:
        raise UpgradeRefusedError(400, f"the query: {error}") from error
    return MappingProxyType(dict(reversed(pairs)))


ACK_TIMEOUT_MS_MIN: Final = 1_000
"""Shortest ack timeout, in milliseconds; 0 turns it off. Pulsar's client refuses shorter ones,
too."""
_INT_MAX = (1 << 31) - 1
_LONG_MAX = (1 << 63) - 1
_DAY_MS = 86_400_000
_NUMBER = re.compile(r"[+-]?[0-9]{1,19}", re.ASCII)
_Value = TypeVar("_Value")


class HashingScheme(Enum):
    """Hash that maps a key to a partition."""

    JAVA_STRING = "JavaStringHash"
    MURMUR3 = "Murmur3_32Hash"


class RoutingMode(Enum):
    """Choice of the partition for a message without a key."""

    SINGLE = "SinglePartition"
    ROUND_ROBIN = "RoundRobinPartition"


class CryptoFailureAction(Enum):
    """Treatment of encrypted messages by a consumer without keys."""

    FAIL = "FAIL"
    DISCARD = "DISCARD"
    CONSUME = "CONSUME"


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerParameters:
    """Query parameters of `/producer/`."""

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
    """Keys by which the client encrypts its messages; empty if it does not encrypt."""
    encodes_text: bool
    """Whether payloads are text that the topic's schema encodes."""

    @classmethod
    def of(cls, query: Mapping[str, str]) -> "ProducerParameters":
        """Parse a query. Raises: UpgradeRefusedError: 400."""
        encodes_text = query.get("encodeBySchema", "").lower() == "true"
        if encodes_text and query.get("encryptionKeys"):
            raise UpgradeRefusedError(
                400, "encodeBySchema: a client that encrypts messages must encode them itself"
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
            batch_messages_max=min(
                BATCH_MESSAGES_MAX, _default(read, "batchingMaxMessages", 1, 1000)
            ),
            batch_delay_ms=min(60_000, _default(read, "batchingMaxPublishDelay", 0, 1)),
            pending_messages_max=_number(read, "maxPendingMessages", 0, _INT_MAX) or None,
            compression=_choice(query, "compressionType", _BY_COMPRESSION, Compression.NONE),
            encryption_keys=parse_keys(query.get("encryptionKeys", "")),
            encodes_text=encodes_text,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerParameters:
    """Query parameters of `/consumer/`."""

    name: str
    subscription_type: SubscriptionType
    durable: bool
    initial_position: InitialPosition
    queue_messages: int
    """Size of the window; 0 counts as 1."""
    priority_level: int
    ack_timeout_ms: int
    nack_delay_ms: int
    redeliveries_max: int | None
    """Redeliveries after which a message becomes a dead letter; None for never."""
    dead_letter_topic: str
    """Topic for dead letters; empty for `{topic}-{subscription}-DLQ`."""
    dead_letter_subscription: str
    """Subscription that the dead letter topic has before its first message; empty for none."""
    pull: bool
    on_encrypted: CryptoFailureAction

    @classmethod
    def of(cls, query: Mapping[str, str], *, queue_max: int) -> "ConsumerParameters":
        """Parse a query; `queue_max` caps `receiverQueueSize`. Raises: UpgradeRefusedError: 400."""
        ack_timeout_ms = _default(query, "ackTimeoutMillis", 0, 0, most=_LONG_MAX)
        if 0 < ack_timeout_ms < ACK_TIMEOUT_MS_MIN:
            raise UpgradeRefusedError(
                400, f"ackTimeoutMillis: {ack_timeout_ms}; use 0, or {ACK_TIMEOUT_MS_MIN} and more"
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
    """Query parameters of `/reader/`."""

    name: str
    queue_messages: int
    start: MessageId
    on_encrypted: CryptoFailureAction

    @classmethod
    def of(cls, query: Mapping[str, str], *, queue_max: int) -> "ReaderParameters":
        """Parse a query; `queue_max` caps `receiverQueueSize`. Raises: UpgradeRefusedError: 400."""
        return cls(
            name=query.get("readerName", ""),
            queue_messages=_queue(query, queue_max),
            start=_start(query.get("messageId", "latest")),
            on_encrypted=_crypto(query),
        )


def parse_message_id(text: str) -> MessageId:
    """Parse a message id: base64 of a serialized id, as in message frames.

    Raises:
        MalformedPayloadError: it is not one.
    """
    try:
        data = b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:
        raise MalformedPayloadError(f"no base64: {error}") from error
    message_id = MessageId.from_bytes(data)
    if message_id.batch_index < -1 or message_id.batch_size < 0:
        raise MalformedPayloadError("a message id with a negative index")
    if max(message_id.batch_index, message_id.batch_size) > _BATCH_SIZE_MAX:
        raise MalformedPayloadError(f"a batch has at most {_BATCH_SIZE_MAX} messages")
    return message_id


def _start(text: str) -> MessageId:
    if text == "earliest":
        return MessageId.EARLIEST
    if text == "latest":
        return MessageId.LATEST
    try:
        # A plus sign that was not percent-encoded arrives as a blank.
        return parse_message_id(text.replace(" ", "+"))
    except MalformedPayloadError as error:
        raise UpgradeRefusedError(
            400, f"messageId: expected earliest, latest or a base64 id: {error}"
        ) from error


def _queue(query: Mapping[str, str], most: int) -> int:
    return min(most, _default(query, "receiverQueueSize", 0, most))


def _crypto(query: Mapping[str, str]) -> CryptoFailureAction:
    """Return the action; unknown values are ignored and mean FAIL."""
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
        raise UpgradeRefusedError(
            400, f"{name}: expected a number from {least} to {most}, got {text[:100]!r}"
        )
    return value


def _choice(
    query: Mapping[str, str], name: str, values: Mapping[str, _Value], default: _Value
) -> _Value:
    text = query.get(name)
    if text is None:
        return default
    if text not in values:
        raise UpgradeRefusedError(
            400, f"{name}: expected one of {', '.join(values)}, got {text[:100]!r}"
        )
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
