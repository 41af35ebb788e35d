"""The body of a marker that tells single acknowledgements to another Magnetar cluster. Pure.

An update of Pulsar's kind has one position per cluster. Acknowledgements behind a hole are told by
the place where each message was first stored: cluster, incarnation, ledger and entry. This place is
the same in all clusters. Layout: docs/formats/subscription-acks.md.
"""

from collections.abc import Mapping
from typing import Final, NamedTuple

from magnetar.broker.base.errors import BrokerMetadataError
from magnetar.broker.features.replication.source_marks import Source
from magnetar.cursors import AckRange, BatchAck

ACKS_VERSION: Final = 1
"""First byte of a body. Stored on disk, never renumber."""

ACKS_BYTES_MAX: Final = 64 << 10
"""Largest body, in bytes."""

RANGES_MAX: Final = 2_000
"""Most ranges and batches that one marker names. Further ones follow in the next marker."""

BATCH_BYTES_MAX: Final = 1 << 10
"""Largest bitmap of one batch, in bytes: that of 8192 messages. Larger batches are not told."""

SOURCES_MAX: Final = 64
"""Most sources that one marker names; a topic has no more (`source_marks.py`)."""

_NAME_BYTES_MAX = 1_000
_INT63_MAX = (1 << 63) - 1
_WHOLE = 1


class OriginAcks(NamedTuple):
    """Acknowledged messages of one source, by their positions there, ascending."""

    ranges: tuple[AckRange, ...] = ()
    batches: tuple[BatchAck, ...] = ()
    """Batches that are partly acknowledged."""

    @property
    def entries(self) -> int:
        """Number of entries named."""
        return entries_in(self.ranges) + len(self.batches)


class Acks(NamedTuple):
    """Acknowledgements of one subscription."""

    subscription: str
    by_source: Mapping[Source, OriginAcks]
    is_whole: bool = False
    """Whether the sending cluster knows its log from the beginning, so that the receiver may create
    the subscription at the beginning of the log."""

    @property
    def entries(self) -> int:
        """Number of entries named."""
        return sum(each.entries for each in self.by_source.values())


def entries_in(ranges: tuple[AckRange, ...] | list[AckRange]) -> int:
    """Return the number of entries in the ranges."""
    return sum(last - first + 1 for _, first, last in ranges)


# Encoding


def encode_acks(acks: Acks) -> bytes:
    """Return the body of a marker. The caller must keep within `ACKS_BYTES_MAX`."""
    parts = [bytes((ACKS_VERSION, _WHOLE if acks.is_whole else 0))]
    _add_bytes(parts, acks.subscription.encode())
    _add(parts, len(acks.by_source))
    for source, (ranges, batches) in sorted(acks.by_source.items()):
        _add_bytes(parts, source.cluster.encode())
        _add(parts, source.incarnation)
        _add(parts, len(ranges))
        for ledger_id, first, last in ranges:
            _add(parts, ledger_id)
            _add(parts, first)
            _add(parts, last - first)
        _add(parts, len(batches))
        for ledger_id, entry_id, remaining in batches:
            _add(parts, ledger_id)
            _add(parts, entry_id)
            _add_bytes(parts, remaining.to_bytes((remaining.bit_length() + 7) // 8, "little"))
    return b"".join(parts)


def _add(parts: list[bytes], number: int) -> None:
    encoded = bytearray()
    while number >= 0x80:
        encoded.append(number & 0x7F | 0x80)
        number >>= 7
    encoded.append(number)
    parts.append(bytes(encoded))


def _add_bytes(parts: list[bytes], value: bytes) -> None:
    _add(parts, len(value))
    parts.append(value)


# Decoding


def decode_acks(body: bytes) -> Acks:
    """Return the acknowledgements in the body of a marker.

    Raises:
        BrokerMetadataError: the body is malformed, or exceeds a bound. A retry does not help.
    """
    if len(body) > ACKS_BYTES_MAX:
        raise BrokerMetadataError(
            f"a marker of acknowledgements has {len(body)} bytes; the limit is {ACKS_BYTES_MAX}"
        )
    reader = _Reader(body)
    version, flags = reader.byte(), reader.byte()
    if version != ACKS_VERSION:
        raise BrokerMetadataError(
            f"a marker of acknowledgements has version {version}; {ACKS_VERSION} is known here"
        )
    subscription = reader.text()
    by_source: dict[Source, OriginAcks] = {}
    left = RANGES_MAX
    for _ in range(reader.count(SOURCES_MAX)):
        source = Source(reader.text(), reader.number())
        ranges = tuple(reader.range() for _ in range(reader.count(left)))
        left -= len(ranges)
        batches = tuple(reader.batch() for _ in range(reader.count(left)))
        left -= len(batches)
        by_source[source] = OriginAcks(ranges, batches)
    reader.end()
    return Acks(subscription, by_source, bool(flags & _WHOLE))


class _Reader:
    def __init__(self, body: bytes) -> None:
        self._body = body
        self._at = 0

    def byte(self) -> int:
        if self._at >= len(self._body):
            raise BrokerMetadataError(
                f"a marker of acknowledgements ends at byte {self._at}, in the middle"
            )
        self._at += 1
        return self._body[self._at - 1]

    def number(self) -> int:
        number, shift, start = 0, 0, self._at
        while True:
            byte = self.byte()
            number |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                break
            if shift > 56:
                number = _INT63_MAX + 1
                break
        if number > _INT63_MAX:
            raise BrokerMetadataError(
                f"a marker of acknowledgements has a number at byte {start} above {_INT63_MAX}"
            )
        return number

    def count(self, count_max: int) -> int:
        count = self.number()
        if count > count_max:
            raise BrokerMetadataError(
                f"a marker of acknowledgements names {count} items at byte {self._at}; at most "
                f"{count_max} are allowed there"
            )
        return count

    def sized(self, size_max: int) -> bytes:
        size = self.number()
        if not 0 < size <= size_max or self._at + size > len(self._body):
            raise BrokerMetadataError(
                f"a marker of acknowledgements has a value of {size} bytes at byte {self._at}; 1 "
                f"to {size_max} are allowed, and {len(self._body) - self._at} are there"
            )
        self._at += size
        return self._body[self._at - size : self._at]

    def text(self) -> str:
        try:
            return self.sized(_NAME_BYTES_MAX).decode()
        except UnicodeDecodeError as error:
            raise BrokerMetadataError(
                f"a name in a marker of acknowledgements is no valid UTF-8: {error}"
            ) from error

    def range(self) -> AckRange:
        ledger_id, first = self.number(), self.number()
        return AckRange(ledger_id, first, min(first + self.number(), _INT63_MAX))

    def batch(self) -> BatchAck:
        ledger_id, entry_id = self.number(), self.number()
        remaining = int.from_bytes(self.sized(BATCH_BYTES_MAX), "little")
        if not remaining:
            raise BrokerMetadataError(
                f"a marker of acknowledgements says of the batch {ledger_id}:{entry_id} that "
                "nothing of it is open"
            )
        return BatchAck(ledger_id, entry_id, remaining)

    def end(self) -> None:
        if self._at != len(self._body):
            raise BrokerMetadataError(
                f"a marker of acknowledgements has {len(self._body) - self._at} bytes behind its "
                "end"
            )
