"""The options of the sink."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

from magnetar.arrow.stored.options import ConnectionOptions, OptionReader, shown
from magnetar.sdk.scalable.names import is_scalable_name
from magnetar.sdk.spark.errors import OptionError
from magnetar.sdk.wire.batches import BATCH_MESSAGES_MAX
from magnetar.sdk.wire.compression import Compression
from magnetar.sdk.wire.errors import TopicNameError
from magnetar.sdk.wire.topic_name import SEGMENT, TopicName

_OF_SPARK = ("path", "checkpointLocation", "queryName", "outputMode", "mode")
"""Names that Spark puts among the options of a sink."""

_NAME_CHARACTERS_MAX = 200


class Deduplication(Enum):
    """The party that ensures that the broker deduplicates."""

    ENABLE = "enable"
    """The sink turns deduplication on for the topic."""
    REQUIRE = "require"
    """An administrator does; the sink refuses to start where it is off."""
    ASSUME = "assume"
    """An administrator does, and there is no `admin.url` for checking it."""
    OFF = "off"
    """No party does: a retry writes rows again. At least once."""


class Encoding(Enum):
    """Encoding of a message's value."""

    VALUE = "none"
    JSON = "json"
    AVRO = "avro"


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkOptions:
    """Checked options; see docs/pipeline.md for each."""

    connection: ConnectionOptions
    topic: str
    """Full name; if empty, each row names its topic in `__topic`."""
    deduplication: Deduplication
    producer_name: str
    """Prefix of the query's id (stream), or replacement of a random one (batch)."""
    encoding: Encoding
    schema_name: str
    compression: Compression
    batching: bool
    batch_messages_max: int
    batch_bytes_max: int
    batch_by_key: bool
    murmur: bool
    sort_by: tuple[str, ...]
    pending_bytes_max: int
    send_timeout_ms: int
    busy_timeout_ms: int

    @classmethod
    def read(cls, options: Mapping[str, str]) -> "SinkOptions":
        """Read the options.

        Raises:
            OptionError: the first mistake.
        """
        read = OptionReader(options, ignored=_OF_SPARK)
        connection = ConnectionOptions.read(read)
        deduplication = Deduplication(
            read.choice("deduplication", [each.value for each in Deduplication], "enable")
        )
        encoding = Encoding(read.choice("schema", [each.value for each in Encoding], "none"))
        _check_admin_url(connection, deduplication)
        found = cls(
            connection=connection,
            topic=_topic(read.text("topic", "")),
            deduplication=deduplication,
            producer_name=_name(read.text("producerName", "")),
            encoding=encoding,
            schema_name=read.text("schemaName", "Row"),
            compression=Compression(
                read.choice("compressionType", [each.value for each in Compression], "none")
            ),
            batching=read.flag("batchingEnabled", True),
            batch_messages_max=_integer(read, "batchingMaxMessages", 1_000, 1, BATCH_MESSAGES_MAX),
            batch_bytes_max=_integer(read, "batchingMaxBytes", 128 * 1024, 1, 64 * 1024 * 1024),
            batch_by_key=read.choice("batcherBuilder", ("default", "key"), "default") == "key",
            murmur=read.choice(
                "hashingScheme", ("JavaStringHash", "Murmur3_32Hash"), "JavaStringHash"
            )
            == "Murmur3_32Hash",
            sort_by=read.names("sortBy"),
            pending_bytes_max=_integer(read, "pendingMaxBytes", 16 << 20, 1, 1 << 40),
            send_timeout_ms=_integer(read, "sendTimeoutMs", 120_000, 0, 86_400_000),
            busy_timeout_ms=_integer(read, "busyTimeoutMs", 300_000, 0, 86_400_000),
        )
        read.finish("sink")
        return found


def _check_admin_url(connection: ConnectionOptions, deduplication: Deduplication) -> None:
    if connection.admin_url:
        return
    if deduplication in (Deduplication.ENABLE, Deduplication.REQUIRE):
        raise OptionError(
            "admin.url",
            "it is required to turn on deduplication, without which a retry writes rows twice; if "
            "the namespace has it on already, set deduplication=assume instead",
        )


def _topic(name: str) -> str:
    if not name:
        return ""
    check_not_scalable(name)
    try:
        topic = TopicName.parse(name)
    except TopicNameError as error:
        raise OptionError("topic", str(error)) from None
    if not topic.is_persistent:
        raise OptionError("topic", f"{shown(name)} is not persistent: nothing would be kept")
    return str(topic)


def check_not_scalable(name: str) -> None:
    """Refuse topics that the sink cannot write to.

    Raises:
        OptionError: the topic is scalable, or a segment.
    """
    if is_scalable_name(name) or name.startswith(f"{SEGMENT}://"):
        raise OptionError(
            "topic",
            f"{shown(name)} is a scalable topic, to which the sink does not write: brokers know "
            "what a task has stored segment by segment, so a retry after a split would store rows "
            "twice. Write to a plain or partitioned topic, or use a producer of the SDK in "
            "foreachBatch, which may store rows twice when a batch is repeated",
        )


def _name(name: str) -> str:
    if len(name) > _NAME_CHARACTERS_MAX or not name.isprintable():
        raise OptionError(
            "producerName", f"it has at most {_NAME_CHARACTERS_MAX} printable characters"
        )
    return name


def _integer(read: OptionReader, name: str, default: int, low: int, high: int) -> int:
    found = read.integer(name, default, low=low, high=high)
    assert found is not None
    return found
