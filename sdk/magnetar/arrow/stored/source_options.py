"""The options of the source, checked. docs/spark.md has the table."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Literal

import re2

from magnetar.arrow.stored.errors import OffsetError, OptionError
from magnetar.arrow.stored.object_options import NAMES as OBJECT_NAMES
from magnetar.arrow.stored.object_options import ObjectOptions, read_object_options
from magnetar.arrow.stored.offsets import StartingOffsets, parse_offsets
from magnetar.arrow.stored.options import CONNECTION_NAMES, ConnectionOptions, OptionReader, shown
from magnetar.arrow.stored.slices import FAILFAST, MODES, BookieSecurity, ReadSettings
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
    "maxEntriesPerTrigger",
    "maxBytesPerTrigger",
    "failOnDataLoss",
    "mode",
    "subscriptionName",
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
    *OBJECT_NAMES,
)
"""Of the source, beside those of the connection."""

_INT63 = (1 << 63) - 1
_SUBSCRIPTION = re.compile(r"[^\s/]{1,255}")


@dataclass(frozen=True)
class Selection:
    """The topics of a query: a list of them, or those of a namespace that match a pattern."""

    topics: tuple[TopicName, ...] = ()
    namespace: str = ""
    pattern: str = ""
    """Of topics' own names, from end to end."""
    scalable: "Selection | None" = None
    """Scalable topics, by their `persistent://` names; None: there are none."""


@dataclass(frozen=True)
class SourceOptions:
    """Everything a query on the source says."""

    connection: ConnectionOptions
    selection: Selection
    starting: StartingOffsets
    ending: StartingOffsets
    starting_ms: int | None
    ending_ms: int | None
    entries_max: int | None
    """Per micro-batch; None: no limit."""
    bytes_max: int | None
    subscription: str
    """Empty: one of its own for each query."""
    reads_bookies: bool
    metadata_url: str
    slice_bytes: int
    settings: ReadSettings
    objects: ObjectOptions | None = None
    """Of a query that asks no server; None: it does."""

    @classmethod
    def read(cls, options: Mapping[str, str], *, is_stream: bool | None = None) -> "SourceOptions":
        """`is_stream` None: it is not known yet what kind of query it will be.

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
        starting_ms, ending_ms = _time(read, "startingTime"), _time(read, "endingTime")
        starting = _offsets(read, "startingOffsets", "latest" if is_stream else "earliest")
        ending = _offsets(read, "endingOffsets", "latest")
        for time_ms, time_name, name in (
            (starting_ms, "startingTime", "startingOffsets"),
            (ending_ms, "endingTime", "endingOffsets"),
        ):
            if time_ms is not None and read.is_given(name):
                raise OptionError(time_name, f"it cannot be given together with {name}")
        if starting_ms is not None and ending_ms is not None and ending_ms < starting_ms:
            raise OptionError("endingTime", "it is before startingTime")
        if ending.word == "earliest":
            raise OptionError("endingOffsets", "'earliest' is not allowed; it is latest or JSON")
        subscription = read.text("subscriptionName", "")
        if subscription and not _SUBSCRIPTION.fullmatch(subscription):
            raise OptionError(
                "subscriptionName", f"{shown(subscription)}: up to 255 characters, no / or space"
            )
        return cls(
            connection=connection,
            selection=selection,
            starting=starting,
            ending=ending,
            starting_ms=starting_ms,
            ending_ms=ending_ms,
            entries_max=read.integer("maxEntriesPerTrigger", None, low=1, high=_INT63),
            bytes_max=read.integer("maxBytesPerTrigger", None, low=1, high=_INT63),
            subscription=subscription,
            reads_bookies=reads_bookies,
            metadata_url=metadata_url,
            slice_bytes=_integer(read, "sliceBytes", 32 << 20, low=1, high=1 << 40),
            settings=ReadSettings(
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
                worker_niceness=_integer(read, "workerNiceness", 0, low=0, high=20),
                service_url=connection.service_url,
                client=connection.client_settings() if objects is None else None,
            ),
            objects=objects,
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
    """Return whether executors read bookies, and not through the brokers.

    Raises:
        OptionError: they would need a metadata URL, or this one is of no known form.
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


_OF_STREAMS = ("maxEntriesPerTrigger", "maxBytesPerTrigger", "subscriptionName")
_OF_BATCHES = ("endingOffsets", "endingTime")


def _check_kind(read: OptionReader, is_stream: bool) -> None:
    """Refuse what would have no effect."""
    for name in _OF_BATCHES if is_stream else _OF_STREAMS:
        if read.is_given(name):
            what = "batch" if is_stream else "streaming"
            raise OptionError(name, f"it is for {what} queries only")


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
    """`[persistent://]tenant/namespace/regular-expression`, or the expression alone; with
    `topic://` before it, of scalable topics."""
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
        # Of a standalone it lies beside its metadata.
        secret_file=read.text("bookieSharedSecretFile", shared_secret_beside(metadata_url)),
    )


def _time(read: OptionReader, name: str) -> int | None:
    """Milliseconds since 1970, or ISO 8601; without a zone it is UTC."""
    if not read.is_given(name):
        return None
    text = read.text(name)
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


def _integer(read: OptionReader, name: str, default: int, *, low: int, high: int) -> int:
    number = read.integer(name, default, low=low, high=high)
    assert number is not None
    return number
