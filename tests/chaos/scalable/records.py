"""What the clients of the drill write down, and the messages that they exchange.

A consumer writes down the messages that it is given before it acknowledges them, and then whether
the broker has confirmed their acknowledgements. Times are those of the machine's monotonic clock,
which all processes share. A process that is killed loses nothing that it has written.
"""

import os
import struct
import time
from collections.abc import Iterator, Sequence
from enum import IntEnum
from itertools import groupby
from operator import attrgetter
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from magnetar.sdk import MessageBatch

_PAYLOAD = struct.Struct("<BHI")
_HEAD = struct.Struct("<BqII")
"""Kind, time, segment, number of messages, which follow."""
_PLACE = struct.Struct("<qq")
ITEM: Final = np.dtype(
    [
        ("producer", "u1"),
        ("key", "<u2"),
        ("number", "<u4"),
        ("ledger", "<i8"),
        ("entry", "<i8"),
        ("index", "<i4"),
    ]
)
"""A message: its payload, and where it lies in its segment."""
_INDEXES = [struct.pack("<i", index) for index in range(-1, 5_000)]

TOPIC: Final = "topic://public/default/grows"
ADMIN: Final = "/admin/v2/scalable/public/default/grows"
SUBSCRIPTION: Final = "s"

Items = NDArray[Any]
"""Of the type `ITEM`."""


class Kind(IntEnum):
    """What a run is about."""

    RECEIVED = 0
    CONFIRMED = 1
    """The messages were acknowledged, and the broker has said so."""
    UNCONFIRMED = 2
    """The messages were acknowledged, and may come again."""


class Run(NamedTuple):
    """What happened to some messages of a segment at a consumer, in their order."""

    kind: Kind
    time_ns: int
    segment: int
    items: Items


def payload_of(producer: int, key: int, number: int) -> bytes:
    """`number`: of the message, counted by producer and key."""
    return _PAYLOAD.pack(producer, key, number)


def segment_of(topic: str) -> int:
    """The id of a segment: the last part of its topic's name."""
    return int(topic.rpartition("-")[2])


class Journal:
    """What one consumer writes down."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def received(self, batches: Sequence[MessageBatch]) -> None:
        """Write down what was received, in one write."""
        now_ns = time.monotonic_ns()
        written: list[bytes] = []
        for topic, some in groupby(batches, key=attrgetter("topic")):
            items: list[bytes] = []
            count = 0
            for each in some:
                count += _encode(each, items)
            written += (_HEAD.pack(Kind.RECEIVED, now_ns, segment_of(topic), count), *items)
        os.write(self._file, b"".join(written))

    def acknowledged(self, kind: Kind) -> None:
        """What was received since the last call is acknowledged; `kind` says how that ended."""
        os.write(self._file, _HEAD.pack(kind, time.monotonic_ns(), 0, 0))


def _encode(batch: MessageBatch, parts: list[bytes]) -> int:
    """Append the messages of an entry; return how many they are."""
    place = _PLACE.pack(batch.ledger_id, batch.entry_id)
    if batch.remaining is None and batch.batch_size:
        payloads = batch.payloads()
        items = [place] * (3 * len(payloads))
        items[0::3] = payloads
        items[2::3] = _INDEXES[1 : len(payloads) + 1]
        parts += items
        return len(payloads)
    messages = batch.messages()
    for each in messages:
        parts += (each.data, place, _INDEXES[each.batch_index + 1])
    return len(messages)


def read(path: Path) -> Iterator[Run]:
    """What one consumer has written down, in its order; what was cut off is left out."""
    unanswered: dict[int, list[Items]] = {}
    """What was received and is not acknowledged, by segment."""
    with path.open("rb", buffering=1 << 20) as file:
        while len(head := file.read(_HEAD.size)) == _HEAD.size:
            number, time_ns, segment, count = _HEAD.unpack(head)
            kind = Kind(number)
            if kind is Kind.RECEIVED:
                body = file.read(count * ITEM.itemsize)
                if len(body) < count * ITEM.itemsize:
                    return
                items = np.frombuffer(body, dtype=ITEM)
                unanswered.setdefault(segment, []).append(items)
                yield Run(kind, time_ns, segment, items)
                continue
            for each, found in unanswered.items():
                yield Run(kind, time_ns, each, np.concatenate(found))
            unanswered = {}


def received_in(directory: Path) -> int:
    """How many messages were received, more or less: for the pace alone."""
    return sum(path.stat().st_size for path in journals_in(directory)) // ITEM.itemsize


def journals_in(directory: Path) -> list[Path]:
    return sorted(directory.glob("*.received"))


def journal_path(directory: Path, consumer: str) -> Path:
    """A file for each process: a name may come back after a kill."""
    return directory / f"{consumer}-{os.getpid()}.received"
