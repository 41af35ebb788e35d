"""Names: paths of topics in the metadata store and back; checks of names that clients send.

A topic `persistent://tenant/namespace/name` has its managed log at
`/managed-ledgers/tenant/namespace/persistent/<quoted name>`; the nodes of its durable subscriptions
are children of that (`magnetar.cursors.cursor_path`). `magnetar.sdk.wire.topic_name` parses topic
names themselves.
"""

from collections.abc import Iterable
from unicodedata import category
from urllib.parse import unquote_plus

from magnetar.broker.base.errors import (
    BrokerMetadataError,
    InvalidTopicNameError,
    NotAllowedError,
    ProducerBusyError,
)
from magnetar.sdk.wire import TopicName, TopicNameError, parse_topic_name
from magnetar.sdk.wire.pulsar_pb2 import KeyValue
from magnetar.sdk.wire.topic_name import SEGMENT

ROOT = "/managed-ledgers"

SCALABLE_ROOT = "/topics"
"""Root of the records of scalable topics, which are below it by tenant and namespace."""

SUBSCRIPTION_BYTES_MAX = 1024
"""Longest subscription name in bytes of UTF-8; the name becomes the name of a node."""

PROPERTY_COST_BYTES = 64
"""Bytes counted for a property beside its text, so that many empty ones do not evade the bound."""

RANGE_COST_BYTES = 64
"""Bytes counted for a range of hashes."""

_SCALABLE = "topic://"
_PERSISTENT = "persistent://"

_RESERVED_SUBSCRIPTIONS = ("pulsar.dedup", "__compaction", "magnetar.geo.marks")
_SYSTEM_PREFIXES = ("__change_events", "__transaction_buffer_snapshot", "__transaction_log_")
_SYSTEM_NAMESPACE = "persistent://pulsar/system/"
_SYSTEM_SUFFIX = "__transaction_pending_ack"
_RESERVED_PREFIX = "pulsar.repl"
REPLICATOR_PREFIX = "pulsar.repl."
"""Prefix of the producers and cursors that copy topics between clusters."""


def topic_of(name: str) -> TopicName:
    """Parse the name of a topic.

    Raises:
        InvalidTopicNameError: the name has no known form.
    """
    try:
        return parse_topic_name(name)
    except TopicNameError as error:
        raise InvalidTopicNameError(str(error)) from error


def is_scalable(name: str) -> bool:
    """Whether a client of Pulsar 5 means a scalable topic by this name."""
    return isinstance(name, str) and name.startswith(_SCALABLE)


def base_topic_of(name: str) -> TopicName:
    """Parse a name that may be `topic://…`; return the `persistent://` name.

    Both names have one owner, which is the broker that coordinates consumers of the topic.

    Raises:
        InvalidTopicNameError: the name has no known form.
    """
    if is_scalable(name):
        name = _PERSISTENT + name.removeprefix(_SCALABLE)
    return topic_of(name)


def whole_topic_of(name: str) -> TopicName:
    """Parse a name that may be `topic://…` but not that of a segment.

    Raises:
        InvalidTopicNameError: the name has no known form, or is that of a segment.
    """
    topic = base_topic_of(name)
    if topic.is_segment:
        raise InvalidTopicNameError(f"{topic} is one segment: use {resolved_name(topic)}")
    return topic


def resolved_name(topic: TopicName) -> str:
    """Return the `topic://` name of a topic, under which clients of Pulsar 5 know it."""
    return f"{_SCALABLE}{topic.tenant}/{topic.namespace}/{topic.local_name}"


def log_path(topic: TopicName) -> str:
    """Return the path of the topic's managed log."""
    return f"{ROOT}/{topic.storage_name}"


def topics_path(namespace: str) -> str:
    """Return the path whose children are the logs of a namespace's persistent topics."""
    return f"{ROOT}/{namespace}/persistent"


def segments_path(namespace: str) -> str:
    """Return the path whose children are the logs of a namespace's segments of scalable topics."""
    return f"{ROOT}/{namespace}/{SEGMENT}"


def scalable_topics_path(namespace: str) -> str:
    """Return the path whose children are the records of a namespace's scalable topics."""
    return f"{SCALABLE_ROOT}/{namespace}"


def scalable_topic_path(topic: TopicName) -> str:
    """Return the path of the record of the scalable topic that has a `persistent://` name."""
    return f"{scalable_topics_path(topic.namespace_name)}/{topic.storage_name.rpartition('/')[2]}"


def scalable_topic_at(namespace: str, node: str) -> str:
    """Return the `topic://` name of the child `node` of `scalable_topics_path(namespace)`."""
    return f"{_SCALABLE}{namespace}/{unquote_plus(node)}"


def segment_at(namespace: str, node: str) -> TopicName:
    """Return the segment whose log is the child `node` of `segments_path(namespace)`.

    Raises:
        InvalidTopicNameError: the node has no name of a segment.
    """
    return topic_of(f"{SEGMENT}://{namespace}/{unquote_plus(node)}")


def is_internal_cursor(name: str) -> bool:
    """Whether a cursor of that name belongs to the broker and is no subscription."""
    return name in _RESERVED_SUBSCRIPTIONS or name.startswith(_RESERVED_PREFIX)


def is_replicator(producer_name: str) -> bool:
    """Whether a producer of that name is a replicator, which sends copies from another cluster."""
    return producer_name.startswith(REPLICATOR_PREFIX)


def is_system_topic(name: str) -> bool:
    """Whether the topic of that full name is a system topic, which lists for clients leave out."""
    local = name.rpartition("/")[2]
    if name.startswith(_SYSTEM_NAMESPACE):
        return True
    return local.startswith(_SYSTEM_PREFIXES) or local.endswith(_SYSTEM_SUFFIX)


def topic_at(namespace: str, node: str) -> str:
    """Return the full name of the topic whose log is the child `node` of `topics_path`."""
    return f"persistent://{namespace}/{unquote_plus(node)}"


def check_text(*values: str) -> None:
    """Refuse values that are not text: protobuf returns bytes for invalid UTF-8.

    Raises:
        BrokerMetadataError: a value is not text.
    """
    for value in values:
        if not isinstance(value, str):
            raise BrokerMetadataError("a name or property is not valid UTF-8")


def check_client_metadata(
    *names: str, properties: Iterable[KeyValue], ranges: int = 0, bytes_max: int
) -> None:
    """Refuse metadata of a producer or consumer that are no text, or too large for memory.

    Args:
        ranges: number of hash ranges of the consumer.
        bytes_max: limit for all of the metadata together.

    Raises:
        BrokerMetadataError: a text is not UTF-8.
        NotAllowedError: the metadata need more than `bytes_max`.
    """
    size_bytes = ranges * RANGE_COST_BYTES
    for name in names:
        check_text(name)
        size_bytes += len(name.encode())
    for each in properties:
        check_text(each.key, each.value)
        size_bytes += len(each.key.encode()) + len(each.value.encode()) + PROPERTY_COST_BYTES
        if size_bytes > bytes_max:
            break
    if size_bytes > bytes_max:
        raise NotAllowedError(
            f"the names, properties and hash ranges of a producer or consumer need more than the "
            f"{bytes_max} bytes that the broker keeps of each; send fewer, or raise "
            "client_metadata_bytes_max of the broker"
        )


def has_control_character(text: str) -> bool:
    """Whether a name contains NUL, a line break or another control character."""
    return not text.isprintable() and any(category(each) == "Cc" for each in text)


def check_subscription(name: str) -> None:
    """Refuse subscription names that are not valid, or that the broker reserves.

    Raises:
        ProducerBusyError: the name is empty, reserved, too long, or has control characters. The
            odd class is the protocol's choice: a naming error of a subscription travels under the
            code of a busy producer.
    """
    if not isinstance(name, str):
        raise ProducerBusyError("the subscription name is not valid UTF-8")
    if not name.strip():
        raise ProducerBusyError("the subscription name is empty")
    if is_internal_cursor(name):
        raise ProducerBusyError(f"the subscription name {name} is reserved")
    if has_control_character(name):
        raise ProducerBusyError(f"the subscription name {name!r} has a control character")
    size = len(name.encode())
    if size > SUBSCRIPTION_BYTES_MAX:
        raise ProducerBusyError(f"the subscription name is too long: {size} bytes")
