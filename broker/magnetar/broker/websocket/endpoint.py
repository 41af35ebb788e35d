"""What a request target asks for: a producer, consumer or reader, and on which topics. Pure.

`/ws/v2/{producer,reader}/{domain}/{tenant}/{namespace}/{topic}`,
`/ws/v2/consumer/{domain}/{tenant}/{namespace}/{topic}/{subscription}`, and
`/ws/v3/consumer/{subscription}?topics=a,b` or `?topicsPattern=…`.
Source: WebSocket sheet, section 1.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from types import MappingProxyType
from typing import Any, Final
from urllib.parse import parse_qsl, unquote_plus

import re2

from magnetar.broker.websocket.errors import UpgradeRefusedError
from magnetar.sdk.wire.errors import TopicNameError
from magnetar.sdk.wire.topic_name import NON_PERSISTENT, PERSISTENT, TopicName

QUERY_FIELDS_MAX: Final = 100
PATTERN_CHARACTERS_MAX: Final = 1024
_PATTERN_BYTES_MAX = 1 << 20
_MULTI_TOPIC_PARTS = 5
_CONSUMER_PARTS = 9
_TOPIC_PARTS = 8


class Kind(Enum):
    """What a session is."""

    PRODUCER = "producer"
    CONSUMER = "consumer"
    READER = "reader"


@dataclass(frozen=True, slots=True)
class TopicPattern:
    """The topics of one namespace whose full names match: in linear time, by RE2."""

    text: str
    domain: str
    namespace: str
    """`tenant/namespace`."""

    def select(self, names: Sequence[str]) -> list[TopicName]:
        """The topics among full names; partitions are not topics of their own here."""
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
    """A request target, read."""

    kind: Kind
    topics: tuple[TopicName, ...]
    """Empty if a pattern chooses them."""
    subscription: str
    """Empty unless a consumer."""
    pattern: TopicPattern | None
    query: Mapping[str, str]

    @property
    def topic(self) -> TopicName:
        """The topic of a producer or reader."""
        return self.topics[0]


def parse_target(target: str) -> Endpoint:
    """Read a request target: path and query as they came, percent-encoded.

    Raises:
        UpgradeRefusedError: 404 for a path of another kind, 400 for one with mistakes.
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
        raise UpgradeRefusedError(400, f"the domain is persistent or non-persistent: {domain!r}")
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
    """A full-name pattern: domain, tenant and namespace as they are, then the expression."""
    if len(text) > PATTERN_CHARACTERS_MAX:
        raise UpgradeRefusedError(400, "a topicsPattern that is too long")
    domain, separator, rest = text.partition("://")
    if not separator:
        domain, rest = PERSISTENT, text
    parts = rest.split("/", 2)
    if domain not in (PERSISTENT, NON_PERSISTENT) or len(parts) != 3:
        raise UpgradeRefusedError(400, "a topicsPattern is domain://tenant/namespace/expression")
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
    """A part of the path; `+` is a blank, as in the forms that Java's clients make."""
    try:
        return unquote_plus(part, errors="strict")
    except UnicodeDecodeError:
        raise UpgradeRefusedError(400, "a part of the path is no UTF-8") from None


def _query(text: str) -> Mapping[str, str]:
    """Parameters; of those given twice the first one counts."""
    try:
        pairs = parse_qsl(
            text, keep_blank_values=True, errors="strict", max_num_fields=QUERY_FIELDS_MAX
        )
    except ValueError as error:
        raise UpgradeRefusedError(400, f"the query: {error}") from error
    return MappingProxyType(dict(reversed(pairs)))
