"""Arguments of a read, checked and translated into the options of a source."""

import difflib
import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TypedDict, cast

from magnetar.arrow.change_token import Reached, parse_token
from magnetar.arrow.errors import OptionError
from magnetar.arrow.slice_jobs import RowFilter
from magnetar.arrow.stored.offsets import full_name, shown_id
from magnetar.arrow.stored.options import shown
from magnetar.arrow.stored.slices import DROPMALFORMED, FAILFAST, PERMISSIVE
from magnetar.arrow.stored.source_options import SourceOptions
from magnetar.sdk.message_id import MessageId
from magnetar.sdk.wire.errors import TopicNameError

Place = str | int | datetime | bytes | MessageId | Mapping[str, str | bytes | MessageId]
"""Where a read begins or ends.

`earliest`, `latest`, or a message id: as `ledger:entry`, as bytes, as `MessageId`, or one for each
topic. Or a publish time, as datetime or in milliseconds since 1970.
"""

MEMORY_BYTES = 256 << 20
"""Default memory limit of a read, in bytes."""

TABLE_BYTES = 1 << 30
"""Default size limit of a table, in bytes."""

MEMORY_BYTES_PER_WORKER_MIN = 32 << 20
"""Least memory of a worker, in bytes. Enough for its own buffers, and for messages of the largest
size that brokers accept by default."""

WORKERS_MAX = 256

_QUEUE_SHARE = 2
"""Divisor: half of the memory is for batches that wait for the caller."""

_MESSAGE_SHARE = 4
"""Divisor: a message, or a batch of its producer, may take a quarter of its worker's share."""

_SLICE_BYTES_MIN, _SLICE_BYTES_MAX = 1 << 20, 32 << 20

_ARGUMENT_OF: Mapping[str, str] = {
    "service.url": "service_url",
    "admin.url": "admin_url",
    "metadata.url": "metadata_url",
    "startingOffsets": "start",
    "startingTime": "start",
    "endingOffsets": "end",
    "endingTime": "end",
    "topics": "topic",
}
"""Options of the source that are arguments here, under other names."""

_ARGUMENTS: Mapping[str, str] = {
    "topicspattern": "topic, a list of names",
    "allowdifferenttopicschemas": "decode, as False",
    **{name: name for name in ("topic", "authentication", "objects", "mode")},
    **{option.lower(): argument for option, argument in _ARGUMENT_OF.items()},
}


@dataclass(frozen=True)
class Request:
    """A read, checked as far as it can be without asking a server."""

    source: SourceOptions
    columns: tuple[str, ...] | None
    """None for all columns."""
    rows: RowFilter
    decodes: bool
    workers: int
    uses_processes: bool
    memory_bytes: int

    @property
    def queue_bytes_max(self) -> int:
        """Most bytes of batches that may wait for the caller."""
        return self.memory_bytes // _QUEUE_SHARE


class CommonArguments(TypedDict, total=False):
    """Arguments of every function that reads topics, beside the topic. All are optional, except
    that a read from servers needs `service_url` and `admin_url`."""

    service_url: str
    """Brokers: `pulsar://host:port,…` or `pulsar+ssl://…`."""
    admin_url: str
    """HTTP interface of the brokers: `http://host:port,…`."""
    metadata_url: str
    """The metadata store, as in the configuration of the brokers. With it, entries are read
    straight from the bookies. Without it, or where no bookie answers, they are read through
    brokers."""
    authentication: str
    """`token:TOKEN`, `token:file:PATH`, `basic:USER:PASSWORD`, `tls`, or `oauth2` with further
    `options`; default: none."""
    columns: Sequence[str] | None
    """Names of the columns to read; default: all."""
    keys: Collection[str | bytes] | None
    """Read only messages with one of these keys; default: all."""
    decode: bool
    """Whether to decode the values into columns by the topic's schema; default True. False gives
    one column `value` with the bytes, whatever the schema is."""
    mode: str
    """How to treat messages that cannot be read, or whose value does not fit its schema.
    `FAILFAST`, the default, raises. `PERMISSIVE` gives null and a column `__error`. `DROPMALFORMED`
    leaves them out; a table of newest values does not allow it."""
    workers: int
    """Number of slices that are read at once; default 1."""
    processes: bool
    """Whether the workers are processes instead of threads; default False. Python decodes in one
    thread at a time."""
    memory_bytes: int
    """Memory limit of the read, in bytes; default `MEMORY_BYTES`. Half of it is for batches that
    wait for the caller; each worker gets a share. Batches that the caller keeps do not count."""
    options: Mapping[str, str]
    """Further options, by their names in the Spark source (docs/spark.md), such as
    `{"failOnDataLoss": "false"}`."""


class ReadArguments(CommonArguments, total=False):
    """Arguments of `read` and `scan`, beside the topic."""

    objects: str
    """URL of an object store to read from instead of servers. No server is asked."""
    start: Place
    """The first message; default `earliest`. A time selects messages published then or later;
    earlier ones that follow the first of these are left out. A time without a zone is UTC. For a
    partitioned topic, ids are given for each partition, by its name."""
    end: Place
    """The last message; default `latest`: the last one that is confirmed when the read begins. A
    time is inclusive."""


class TableArguments(CommonArguments, total=False):
    """Arguments of `table`, beside the topic."""

    table_bytes: int
    """Size limit of the table, in bytes; default `TABLE_BYTES`. While rows are merged, up to three
    times as much is held, beside `memory_bytes`."""


class ChangeArguments(CommonArguments, total=False):
    """Arguments of `changes`, beside the topic."""

    after: str | None
    """Token of an earlier feed; the new feed has only later changes. Default: everything."""


def checked(topic: str | Sequence[str], arguments: ReadArguments) -> Request:
    """Check the arguments of a read.

    Raises:
        OptionError: with one line that names the argument and what is allowed.
    """
    _check_names(arguments, ReadArguments.__annotations__)
    _check_bounds(arguments)
    try:
        source = SourceOptions.read(_source_options(topic, arguments), is_stream=False)
    except OptionError as error:
        problem = str(error).removeprefix(f"option {error.name}: ")
        raise OptionError(_ARGUMENT_OF.get(error.name, error.name), problem) from None
    columns, keys = arguments.get("columns"), arguments.get("keys")
    return Request(
        source,
        None if columns is None else tuple(columns),
        RowFilter(
            None if keys is None else frozenset(map(_key, keys)),
            source.starting_ms,
            source.ending_ms,
        ),
        arguments.get("decode", True),
        arguments.get("workers", 1),
        arguments.get("processes", False),
        arguments.get("memory_bytes", MEMORY_BYTES),
    )


def checked_table(topic: str | Sequence[str], arguments: TableArguments) -> tuple[Request, int]:
    """Check the arguments of a table. Return its read, and its size limit in bytes.

    Raises:
        OptionError: with one line that names the argument and what is allowed.
    """
    _check_names(arguments, TableArguments.__annotations__)
    table_bytes = arguments.get("table_bytes", TABLE_BYTES)
    if table_bytes < 1:
        raise OptionError("table_bytes", f"{table_bytes} is not above 0")
    return _of_newest(topic, arguments), table_bytes


def checked_changes(
    topic: str | Sequence[str], arguments: ChangeArguments
) -> tuple[Request, dict[str, Reached]]:
    """Check the arguments of a change feed. Return its read, and how far an earlier feed has read.

    Raises:
        OptionError: with one line that names the argument and what is allowed.
    """
    _check_names(arguments, ChangeArguments.__annotations__)
    token = arguments.get("after")
    return _of_newest(topic, arguments), {} if token is None else parse_token(token)


def _of_newest(topic: str | Sequence[str], arguments: Mapping[str, object]) -> Request:
    if arguments.get("mode") == DROPMALFORMED:
        raise OptionError(
            "mode",
            f"{DROPMALFORMED} would make the value before a message that cannot be read the newest "
            f"one: it is {FAILFAST} or {PERMISSIVE}",
        )
    common = {
        name: value for name, value in arguments.items() if name in CommonArguments.__annotations__
    }
    request = checked(topic, cast(ReadArguments, common))
    if request.source.selection.scalable is not None:
        raise OptionError(
            "topic",
            "tables and change feeds of scalable topics are not supported: segments have no "
            "compacted ledger in common. Use read or scan",
        )
    return request


def _check_names(given: Collection[str], known: Collection[str]) -> None:
    unknown = sorted(set(given) - set(known))
    if unknown:
        near = difflib.get_close_matches(unknown[0], known, n=1)
        hint = f"; did you mean {near[0]}?" if near else ""
        raise OptionError(unknown[0], f"there is no argument of this name{hint}")


def _check_bounds(arguments: ReadArguments) -> None:
    workers = arguments.get("workers", 1)
    memory_bytes = arguments.get("memory_bytes", MEMORY_BYTES)
    columns, options = arguments.get("columns"), arguments.get("options", {})
    if not 1 <= workers <= WORKERS_MAX:
        raise OptionError("workers", f"{workers} is not from 1 to {WORKERS_MAX}")
    least = workers * MEMORY_BYTES_PER_WORKER_MIN
    if memory_bytes < least:
        raise OptionError(
            "memory_bytes",
            f"{memory_bytes} is too little for {workers} workers, which need {least}: give more "
            f"memory, or fewer workers",
        )
    if isinstance(columns, str) or (columns is not None and not columns):
        raise OptionError("columns", "it is a list of at least one name, or None for all columns")
    if isinstance(arguments.get("keys"), str | bytes):
        raise OptionError("keys", "it is a collection of keys; for one key write [key]")
    for name in options:
        if argument := _ARGUMENTS.get(name.lower()):
            raise OptionError("options", f"{shown(name)} is an argument of its own: {argument}")


def _source_options(topic: str | Sequence[str], arguments: ReadArguments) -> dict[str, str]:
    share = arguments.get("memory_bytes", MEMORY_BYTES) // arguments.get("workers", 1)
    slice_bytes = min(max(share // 8, _SLICE_BYTES_MIN), _SLICE_BYTES_MAX)
    given = {
        "service.url": arguments.get("service_url", ""),
        "admin.url": arguments.get("admin_url", ""),
        "metadata.url": arguments.get("metadata_url", ""),
        "objects": arguments.get("objects", ""),
        "authentication": arguments.get("authentication", ""),
    }
    selected = {"topic": topic} if isinstance(topic, str) else {"topics": ",".join(topic)}
    return {
        "sliceBytes": str(slice_bytes),
        "maxDecompressedBytes": str(share // _MESSAGE_SHARE),
        "maxChunkedBytes": str(share // _MESSAGE_SHARE),
        **arguments.get("options", {}),
        **{name: value for name, value in given.items() if value},
        **selected,
        "mode": arguments.get("mode", FAILFAST),
        **_start(topic, arguments),
        **_place(topic, "end", arguments.get("end", "latest"), "ending"),
    }


def _start(topic: str | Sequence[str], arguments: ReadArguments) -> dict[str, str]:
    """Return the option for the start of a read; none if `options` already has one."""
    further = {name.lower() for name in arguments.get("options", {})}
    if "start" not in arguments and "startingsubscription" in further:
        return {}
    return _place(topic, "start", arguments.get("start", "earliest"), "starting")


def _place(topic: str | Sequence[str], argument: str, place: Place, prefix: str) -> dict[str, str]:
    """Return the option for a position: `prefix` with `Time` or `Offsets`."""
    if isinstance(place, datetime):
        moment = place if place.tzinfo else place.replace(tzinfo=UTC)
        return {f"{prefix}Time": str(int(moment.timestamp() * 1000))}
    if isinstance(place, int):
        return {f"{prefix}Time": str(place)}
    if isinstance(place, str) and place.lower() in ("earliest", "latest"):
        return {f"{prefix}Offsets": place}
    if isinstance(place, Mapping):
        ids = {name: _id_text(each) for name, each in place.items()}
    elif isinstance(topic, str):
        ids = {topic: _id_text(place)}
    else:
        raise OptionError(argument, "with several topics it is a message id for each of them")
    return {f"{prefix}Offsets": _as_json(argument, ids)}


def _id_text(place: str | bytes | MessageId) -> str:
    if isinstance(place, MessageId):
        return shown_id(place)
    return place.hex() if isinstance(place, bytes) else place


def _as_json(argument: str, ids: Mapping[str, str]) -> str:
    try:
        return json.dumps({full_name(topic): text for topic, text in ids.items()})
    except TopicNameError as error:
        raise OptionError(argument, str(error)) from None


def _key(key: str | bytes) -> bytes:
    return key.encode() if isinstance(key, str) else bytes(key)
