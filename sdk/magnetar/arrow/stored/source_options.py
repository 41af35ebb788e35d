"""The options of the source, checked. docs/spark.md has the table."""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Literal

import re2

from magnetar.arrow.stored.errors import OffsetError, OptionError
from magnetar.arrow.stored.object_options import NAMES as OBJECT_NAMES
from magnetar.arrow.stored.object_options import ObjectOptions, read_object_options
from magnetar.arrow.stored.offsets import StartingOffsets, full_name, parse_offsets
from magnetar.arrow.stored.options import CONNECTION_NAMES, ConnectionOptions, OptionReader, shown
from magnetar.arrow.stored.slices import FAILFAST, MODES, BookieSecurity, ReadSettings
from magnetar.arrow.stored.trigger_limits import NO_LIMITS, TriggerLimits
from magnetar.ledger.metadata.url import shared_secret_beside
from magnetar.sdk.scalable.names import LayoutName, is_scalable_name
from magnetar.sdk.wire.errors import TopicNameError
from magnetar.sdk.wire.topic_name import TopicName

NAMES = (
    "topic",
    "topics",
    "topicsPattern",
    "startingOffsets",
    "endingOffsets",
    "startingTime",
    "endingTime",
    "startingSubscription",
    "maxEntriesPerTrigger",
    "maxMessagesPerTrigger",
    "maxBytesPerTrigger",
    "minEntriesPerTrigger",
    "minMessagesPerTrigger",
    "minBytesPerTrigger",
    "maxTriggerDelay",
    "failOnDataLoss",
    "mode",
    "allowDifferentTopicSchemas",
    "subscriptionName",
    "subscriptionPrefix",
    "idleReleaseMs",
    "readMode",
    "metadata.url",
    "sliceBytes",
    "requestBytes",
    "bookieTimeoutMs",
    "bookieTlsTrustCertsFile",
    "bookieTlsCertificateFile",
    "bookieTlsKeyFile",
    "bookieTlsHostnameVerification",
    "bookieSharedSecretFile",
    "maxDecompressedBytes",
    "maxChunkedBytes",
    "workerNiceness",
    "objectKeyFile",
    "privateKeyFile",
    *OBJECT_NAMES,
)
"""Options of the source, beside those of the connection."""

_INT63 = (1 << 63) - 1
_SUBSCRIPTION = re.compile(r"[^\s/]{1,255}")
_PREFIX_CHARACTERS_MAX = 200
"""Most characters of a prefix: the rest of a subscription's name makes it unique."""

TRIGGER_DELAY_S = 900.0
"""Default for the longest wait of a micro-batch for more data, in seconds; as in Kafka's source."""

IDLE_RELEASE_MS = 60_000
"""Default idle time, in milliseconds, after which a query retains nothing. Until then its position
may be within a chunked message; consumers wait for its end that long by default."""

_UNITS_S: Mapping[str, float] = {
    "ms": 0.001,
    "s": 1,
    "second": 1,
    "seconds": 1,
    "m": 60,
    "min": 60,
    "minute": 60,
    "minutes": 60,
    "h": 3_600,
    "hour": 3_600,
    "hours": 3_600,
}
_DURATION = re.compile(r"([0-9]{1,12})\s*([a-z]*)")


@dataclass(frozen=True)
class Selection:
    """The topics of a query: a list of them, or those of a namespace that match a pattern."""

    topics: tuple[TopicName, ...] = ()
    namespace: str = ""
    pattern: str = ""
    """Pattern for the local names of topics; it must match the whole name."""
    scalable: "Selection | None" = None
    """Scalable topics, by their `persistent://` names; None if there are none."""


@dataclass(frozen=True)
class SourceOptions:
    """All options of a query on the source."""

    connection: ConnectionOptions
    selection: Selection
    starting: StartingOffsets
    ending: StartingOffsets
    starting_ms: int | None
    ending_ms: int | None
    subscription: str
    """If empty, each query has a subscription of its own."""
    reads_bookies: bool
    metadata_url: str
    slice_bytes: int
    settings: ReadSettings
    objects: ObjectOptions | None = None
    """Object stores of a query that uses no server; otherwise None."""
    starting_times: Mapping[str, int] = field(default_factory=dict)
    """Topic or partition -> publish time in ms; empty if no topic has a time of its own."""
    ending_times: Mapping[str, int] = field(default_factory=dict)
    starting_subscription: str = ""
    """Begin after what this subscription has acknowledged; empty to begin by offsets, or by
    time."""
    limits: TriggerLimits = NO_LIMITS
    """Limits of a micro-batch."""
    subscription_prefix: str = "spark"
    """Prefix of a generated subscription name."""
    idle_release_s: float = IDLE_RELEASE_MS / 1000
    """Idle time, in seconds, after which a query retains nothing."""
    takes_bytes_only: bool = False
    """Whether to ignore the schemas of the topics, and read values as bytes."""

    @classmethod
    def read(cls, options: Mapping[str, str], *, is_stream: bool | None = None) -> "SourceOptions":
        """Read the options. `is_stream` is None if the kind of the query is not known yet.

        Raises:
            OptionError: with one line that names the option and what is allowed.
        """
        read = OptionReader(options)
        read.check_names((*CONNECTION_NAMES, *NAMES))
        objects = read_object_options(read)
        if objects is not None and is_stream:
            raise OptionError("objects", _NO_STREAM)
        connection = ConnectionOptions.none() if objects else _connection(read)
        selection = _selection(read)
        if objects is not None and selection.scalable is not None:
            raise OptionError("objects", _NO_SEGMENTS)
        metadata_url = read.text("metadata.url", "")
        reads_bookies = _reads_bookies(read, metadata_url)
        if is_stream is not None:
            _check_kind(read, is_stream)
        _check_one_place(read, has_servers=objects is None)
        starting_ms, starting_times = _times(read, "startingTime")
        ending_ms, ending_times = _times(read, "endingTime")
        if starting_ms is not None and ending_ms is not None and ending_ms < starting_ms:
            raise OptionError("endingTime", "it is before startingTime")
        ending = _offsets(read, "endingOffsets", "latest")
        if ending.word == "earliest":
            raise OptionError("endingOffsets", "'earliest' is not allowed; it is latest or JSON")
        subscription, prefix = _subscription(read)
        return cls(
            connection=connection,
            selection=selection,
            starting=_offsets(read, "startingOffsets", "latest" if is_stream else "earliest"),
            ending=ending,
            starting_ms=starting_ms,
            ending_ms=ending_ms,
            subscription=subscription,
            reads_bookies=reads_bookies,
            metadata_url=metadata_url,
            slice_bytes=_integer(read, "sliceBytes", 32 << 20, low=1, high=1 << 40),
            settings=_read_settings(read, connection, metadata_url, has_servers=objects is None),
            objects=objects,
            starting_times=starting_times,
            ending_times=ending_times,
            starting_subscription=_name(read, "startingSubscription"),
            limits=_limits(read),
            subscription_prefix=prefix,
            idle_release_s=_integer(read, "idleReleaseMs", IDLE_RELEASE_MS, low=0, high=3_600_000)
            / 1000,
            takes_bytes_only=read.flag("allowDifferentTopicSchemas", False),
        )


def _read_settings(
    read: OptionReader, connection: ConnectionOptions, metadata_url: str, *, has_servers: bool
) -> ReadSettings:
    """Read the settings of executors."""
    return ReadSettings(
        fail_on_data_loss=read.flag("failOnDataLoss", True),
        mode=read.choice("mode", MODES, FAILFAST),
        request_bytes=_integer(read, "requestBytes", 1 << 20, low=4096, high=7 << 20),
        bookie_timeout_ms=_integer(read, "bookieTimeoutMs", 5_000, low=10, high=600_000),
        bookie_security=_bookie_security(read, metadata_url),
        decompressed_bytes_max=_integer(
            read, "maxDecompressedBytes", 64 << 20, low=1, high=1 << 31
        ),
        chunked_bytes_max=_integer(read, "maxChunkedBytes", 256 << 20, low=1, high=1 << 31),
        object_key_file=read.text("objectKeyFile", ""),
        private_key_file=read.text("privateKeyFile", ""),
        worker_niceness=_integer(read, "workerNiceness", 0, low=0, high=20),
        service_url=connection.service_url,
        client=connection.client_settings() if has_servers else None,
    )


_NO_STREAM = (
    "it is for batch queries only: objects alone do not tell of what comes later. Read them in "
    "batches, or stream from the brokers (service.url, admin.url)"
)
_NO_SEGMENTS = (
    "it is for plain and partitioned topics only: an object store does not tell the layout of a "
    "scalable topic. Read it from the brokers (service.url, admin.url)"
)


def _connection(read: OptionReader) -> ConnectionOptions:
    connection = ConnectionOptions.read(read)
    if not connection.admin_url:
        raise OptionError("admin.url", "it is required, of the form http://host:port")
    return connection


def _reads_bookies(read: OptionReader, metadata_url: str) -> bool:
    """Return whether executors read from bookies, and not through the brokers.

    Raises:
        OptionError: the mode requires a metadata URL, or its form is unknown.
    """
    mode = read.choice("readMode", ("direct", "broker"), "direct" if metadata_url else "broker")
    if mode == "direct" and not metadata_url:
        raise OptionError(
            "metadata.url",
            "readMode direct requires it: zk://host:port[,host:port]/path as the brokers have "
            "it, so that the driver finds the bookies",
        )
    if metadata_url and not metadata_url.startswith(("zk://", "embedded:")):
        raise OptionError(
            "metadata.url",
            f"{shown(metadata_url)} is not of the form zk://host:port/path or embedded:PATH",
        )
    return mode == "direct"


_MAXIMA = ("maxEntriesPerTrigger", "maxMessagesPerTrigger", "maxBytesPerTrigger")
_MINIMA = ("minEntriesPerTrigger", "minMessagesPerTrigger", "minBytesPerTrigger")
_OF_STREAMS = (
    *_MAXIMA,
    *_MINIMA,
    "maxTriggerDelay",
    "subscriptionName",
    "subscriptionPrefix",
    "idleReleaseMs",
)
_OF_BATCHES = ("endingOffsets", "endingTime")


def _check_kind(read: OptionReader, is_stream: bool) -> None:
    """Refuse options that have no effect in this kind of query."""
    for name in _OF_BATCHES if is_stream else _OF_STREAMS:
        if read.is_given(name):
            what = "batch" if is_stream else "streaming"
            raise OptionError(name, f"it is for {what} queries only")


def _check_one_place(read: OptionReader, *, has_servers: bool) -> None:
    """Refuse several options for one start, or for one end."""
    for names in (
        ("startingTime", "startingOffsets", "startingSubscription"),
        ("endingTime", "endingOffsets"),
    ):
        given = [name for name in names if read.is_given(name)]
        if len(given) > 1:
            raise OptionError(given[0], f"it cannot be given together with {given[1]}")
    if not has_servers and read.is_given("startingSubscription"):
        raise OptionError(
            "startingSubscription",
            "it cannot be given together with objects: brokers alone know subscriptions",
        )


def _limits(read: OptionReader) -> TriggerLimits:
    """Read the limits of a micro-batch, and the minimum for which it waits."""
    minima = {name: read.integer(name, None, low=1, high=_INT63) for name in _MINIMA}
    maxima = {name: read.integer(name, None, low=1, high=_INT63) for name in _MAXIMA}
    given = [name for name in _MINIMA if minima[name] is not None]
    if len(given) > 1:
        raise OptionError(given[1], f"it cannot be given together with {given[0]}")
    if not given and read.is_given("maxTriggerDelay"):
        raise OptionError("maxTriggerDelay", f"it has no effect without one of {_listed(_MINIMA)}")
    for low, high in zip(_MINIMA, _MAXIMA, strict=True):
        least, most = minima[low], maxima[high]
        if least is not None and most is not None and least > most:
            raise OptionError(low, f"{least} is more than {high}, {most}")
    entries_max, messages_max, bytes_max = (maxima[name] for name in _MAXIMA)
    entries_min, messages_min, bytes_min = (minima[name] for name in _MINIMA)
    return TriggerLimits(
        entries_max=entries_max,
        messages_max=messages_max,
        bytes_max=bytes_max,
        entries_min=entries_min,
        messages_min=messages_min,
        bytes_min=bytes_min,
        delay_s=_duration_s(read, "maxTriggerDelay", TRIGGER_DELAY_S),
    )


def _listed(names: tuple[str, ...]) -> str:
    return f"{', '.join(names[:-1])} and {names[-1]}"


def _subscription(read: OptionReader) -> tuple[str, str]:
    """Return the name of the query's subscription, if given, and the prefix for a generated one.

    Raises:
        OptionError
    """
    name = _name(read, "subscriptionName")
    if not read.is_given("subscriptionPrefix"):
        return name, "spark"
    if name:
        raise OptionError("subscriptionPrefix", "it cannot be given together with subscriptionName")
    prefix = _name(read, "subscriptionPrefix")
    if not 0 < len(prefix) <= _PREFIX_CHARACTERS_MAX:
        raise OptionError("subscriptionPrefix", f"it has 1 to {_PREFIX_CHARACTERS_MAX} characters")
    return "", prefix


def _name(read: OptionReader, option: str) -> str:
    """Return a subscription's name, or its prefix; empty if the option is not given."""
    name = read.text(option, "")
    if name and not _SUBSCRIPTION.fullmatch(name):
        raise OptionError(option, f"{shown(name)}: up to 255 characters, no / or space")
    return name


def _selection(read: OptionReader) -> Selection:
    ways = ("topic", "topics", "topicsPattern")
    given = [name for name in ways if read.is_given(name)]
    if len(given) != 1:
        said = f"{', '.join(given)} are given" if given else "none is given"
        raise OptionError("topic", f"exactly one of topic, topics and topicsPattern; {said}")
    name = given[0]
    if name == "topicsPattern":
        return _pattern(read.text(name))
    texts = (read.text(name),) if name == "topic" else read.names(name)
    topics: list[TopicName] = []
    scalable: list[TopicName] = []
    for text in texts:
        try:
            if is_scalable_name(text):
                scalable.append(LayoutName.parse(text).whole)
                continue
            topic = TopicName.parse(text)
        except TopicNameError as error:
            raise OptionError(name, str(error)) from None
        if not topic.is_persistent:
            raise OptionError(name, f"{topic}: only persistent topics can be read")
        topics.append(topic)
    return Selection(
        tuple(dict.fromkeys(topics)),
        scalable=Selection(tuple(dict.fromkeys(scalable))) if scalable else None,
    )


def _pattern(text: str) -> Selection:
    """Parse `[persistent://]tenant/namespace/regular-expression`, or the expression alone.

    With `topic://` before it, the pattern selects scalable topics.
    """
    rest = text.removeprefix("persistent://")
    if is_scalable_name(text):
        return Selection(scalable=_pattern(text.removeprefix("topic://")))
    parts = rest.split("/", 2)
    if len(parts) == 1:
        tenant, namespace, expression = "public", "default", rest
    elif len(parts) == 3:
        tenant, namespace, expression = parts
    else:
        raise OptionError(
            "topicsPattern", f"{shown(text)} is not of the form tenant/namespace/expression"
        )
    try:
        re2.compile(expression)
    except re2.error as error:
        raise OptionError(
            "topicsPattern", f"{shown(text)} is not a regular expression: {error}"
        ) from None
    return Selection(namespace=f"{tenant}/{namespace}", pattern=expression)


def _offsets(
    read: OptionReader, name: str, default: Literal["earliest", "latest"]
) -> StartingOffsets:
    try:
        return parse_offsets(read.text(name, default))
    except OffsetError as error:
        raise OptionError(name, str(error)) from None


def _bookie_security(read: OptionReader, metadata_url: str) -> BookieSecurity:
    names = ("bookieTlsTrustCertsFile", "bookieTlsCertificateFile", "bookieTlsKeyFile")
    files = [read.text(name, "") for name in names]
    if any(files) and not all(files):
        missing = names[files.index("")]
        raise OptionError(missing, f"{', '.join(names)} go together: bookies ask for a certificate")
    trust, certificate, key = files
    return BookieSecurity(
        tls_trust_file=trust,
        tls_certificate_file=certificate,
        tls_key_file=key,
        tls_checks_host=read.flag("bookieTlsHostnameVerification", True),
        # In a standalone server, the secret is beside the metadata.
        secret_file=read.text("bookieSharedSecretFile", shared_secret_beside(metadata_url)),
    )


def _times(read: OptionReader, name: str) -> tuple[int | None, Mapping[str, int]]:
    """Parse a time for all topics, or JSON with one for each: milliseconds since 1970, or ISO 8601.

    A time without a zone is UTC.

    Raises:
        OptionError
    """
    if not read.is_given(name):
        return None, {}
    text = read.text(name)
    if not text.startswith("{"):
        return _time(name, text), {}
    try:
        found = json.loads(text)
    except ValueError as error:
        raise OptionError(name, f"{shown(text)} is not JSON: {error}") from None
    if not found:
        raise OptionError(name, "it names no topic")
    times: dict[str, int] = {}
    for topic, value in found.items():
        if isinstance(value, bool) or not isinstance(value, (str, int)):
            raise OptionError(name, f"{topic}: {value!r} is not a time")
        try:
            times[full_name(topic)] = _time(name, str(value))
        except TopicNameError as error:
            raise OptionError(name, str(error)) from None
    return None, times


def _time(name: str, text: str) -> int:
    if re.fullmatch(r"[0-9]{1,15}", text):
        return int(text)
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        raise OptionError(
            name,
            f"{shown(text)} is not allowed; it is a time as 2026-03-01T12:00:00Z or milliseconds",
        ) from None
    return int((found if found.tzinfo else found.replace(tzinfo=UTC)).timestamp() * 1000)


def _duration_s(read: OptionReader, name: str, default_s: float) -> float:
    """Return a duration in seconds; a plain number is milliseconds, as in Spark's own options."""
    if not read.is_given(name):
        return default_s
    text = read.text(name).lower()
    found = _DURATION.fullmatch(text)
    unit_s = _UNITS_S.get(found[2] or "ms") if found else None
    if found is None or unit_s is None:
        raise OptionError(name, f"{shown(text)} is not allowed; it is a time as 500ms, 30s or 15m")
    return int(found[1]) * unit_s


def _integer(read: OptionReader, name: str, default: int, *, low: int, high: int) -> int:
    number = read.integer(name, default, low=low, high=high)
    assert number is not None
    return number
