"""What the clients of the drill write down, and the messages that they exchange.

A consumer writes a record for each message before it acknowledges it, and one for each producer and
key when the broker has confirmed its acknowledgements, or has not. Times are those of the machine's
monotonic clock, which all processes share. A process that is killed loses nothing that it has
written.
"""

import os
import struct
import time
from collections.abc import Iterator, Sequence
from enum import IntEnum
from pathlib import Path
from typing import Final, NamedTuple

from magnetar.sdk import Message

_PAYLOAD = struct.Struct("<BHI")
_RECORD = struct.Struct("<BqBHIIqqi")
_READ_RECORDS = 10_000

TOPIC: Final = "topic://public/default/grows"
ADMIN: Final = "/admin/v2/scalable/public/default/grows"
SUBSCRIPTION: Final = "s"


class Kind(IntEnum):
    """What a record is about."""

    RECEIVED = 0
    CONFIRMED = 1
    """Everything of the producer and key up to this message was acknowledged, and the broker has
    said so."""
    UNCONFIRMED = 2
    """What was acknowledged from this message on may come again."""


class Place(NamedTuple):
    """Where a message lies in its segment."""

    ledger_id: int
    entry_id: int
    batch_index: int


class Record(NamedTuple):
    """One thing that happened to a consumer."""

    kind: Kind
    time_ns: int
    producer: int
    key: int
    number: int
    """Of a message, counted by producer and key."""
    segment: int
    place: Place


def payload_of(producer: int, key: int, number: int) -> bytes:
    return _PAYLOAD.pack(producer, key, number)


def stream_of(message: Message[bytes]) -> tuple[int, int]:
    """Producer and key."""
    producer, key, _ = _PAYLOAD.unpack(message.data)
    return producer, key


def segment_of(message: Message[bytes]) -> int:
    """The id of the segment that a message came from: the last part of its topic's name."""
    return int(message.topic.rpartition("-")[2])


class Journal:
    """What one consumer writes down."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def note(self, kind: Kind, messages: Sequence[Message[bytes]]) -> None:
        """Write one record per message, in one write."""
        now_ns = time.monotonic_ns()
        os.write(self._file, b"".join(_encode(kind, now_ns, each) for each in messages))


def _encode(kind: Kind, now_ns: int, message: Message[bytes]) -> bytes:
    found = message.message_id
    place = found.ledger_id, found.entry_id, found.batch_index
    return _RECORD.pack(kind, now_ns, *_PAYLOAD.unpack(message.data), segment_of(message), *place)


def read(path: Path) -> Iterator[Record]:
    """The records of one consumer, in their order; one that was cut off is left out."""
    with path.open("rb") as file:
        while chunk := file.read(_RECORD.size * _READ_RECORDS):
            whole = len(chunk) // _RECORD.size * _RECORD.size
            for kind, time_ns, producer, key, number, segment, *place in _RECORD.iter_unpack(
                chunk[:whole]
            ):
                yield Record(Kind(kind), time_ns, producer, key, number, segment, Place(*place))


def received_in(directory: Path) -> int:
    """How many records there are, more or less: for the pace alone."""
    return sum(path.stat().st_size for path in journals_in(directory)) // _RECORD.size


def journals_in(directory: Path) -> list[Path]:
    return sorted(directory.glob("*.received"))


def journal_path(directory: Path, consumer: str) -> Path:
    """A file for each process: a name may come back after a kill."""
    return directory / f"{consumer}-{os.getpid()}.received"
