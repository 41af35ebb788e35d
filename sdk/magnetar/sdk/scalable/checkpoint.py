"""Checkpoints: how far a topic has been read, as a vector of positions, one for each segment. Pure.

Applications store the bytes without interpreting them. The format is that of the Java client,
integers big-endian: one byte for the kind (0 positions, 1 earliest, 2 latest), four for the number
of positions, and for each position eight for the segment's id, four for a length, and a serialized
`MessageIdData`. Format: docs/formats/checkpoint.md.

A position is the last message that was read. If a chunked message that was not read began before
it, the `first_chunk` of the position is that of the chunked message: reading begins there. A
segment that a checkpoint does not name is newer, and is read from its beginning. A segment that is
gone from the topic is left out.

Source: sheet of Pulsar 5, section 2.5.
"""

import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from types import MappingProxyType
from typing import ClassVar, Self

from magnetar.sdk.errors import CheckpointError
from magnetar.sdk.message_id import MessageId
from magnetar.sdk.wire.errors import MalformedPayloadError

POSITIONS_MAX = 100_000
"""Most positions of a checkpoint."""

_HEAD = struct.Struct(">BI")
_POSITION = struct.Struct(">QI")
_ID_BYTES_MAX = 1_024
"""Most bytes of a serialized message id."""


class CheckpointKind(IntEnum):
    """The first byte of a checkpoint. Applications store it: never renumber."""

    POSITIONS = 0
    EARLIEST = 1
    LATEST = 2


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """How far a topic has been read."""

    kind: CheckpointKind
    positions: Mapping[int, MessageId] = field(default_factory=lambda: MappingProxyType({}))
    """The last message that was read of each segment, by segment id; see the module."""

    EARLIEST: ClassVar["Checkpoint"]
    """Before the first message."""
    LATEST: ClassVar["Checkpoint"]
    """After the last message at the time when reading begins."""

    def to_bytes(self) -> bytes:
        """Return bytes for storage; the module describes the format."""
        parts = [_HEAD.pack(self.kind, len(self.positions))]
        for segment_id, message_id in sorted(self.positions.items()):
            data = message_id.to_bytes()
            parts += [_POSITION.pack(segment_id, len(data)), data]
        return b"".join(parts)

    @classmethod
    def from_bytes(cls, data: bytes) -> Self:
        """Parse the bytes of `to_bytes`, of this client or of Java's.

        Raises:
            CheckpointError: the bytes are not a checkpoint.
        """
        try:
            kind, count = _HEAD.unpack_from(data)
            known = CheckpointKind(kind)
        except (struct.error, ValueError) as error:
            raise CheckpointError(f"the bytes are no checkpoint: {error}") from error
        if count > POSITIONS_MAX:
            raise CheckpointError(
                f"the checkpoint has {count} positions; at most {POSITIONS_MAX} are read"
            )
        at = _HEAD.size
        positions: dict[int, MessageId] = {}
        for _ in range(count):
            try:
                segment_id, length = _POSITION.unpack_from(data, at)
            except struct.error as error:
                raise CheckpointError(f"the checkpoint ends too early: {error}") from error
            at += _POSITION.size
            if length > _ID_BYTES_MAX or at + length > len(data):
                raise CheckpointError(
                    f"the checkpoint is damaged: position of {length} bytes, {len(data) - at} left"
                )
            try:
                positions[segment_id] = MessageId.from_bytes(data[at : at + length])
            except MalformedPayloadError as error:
                raise CheckpointError(f"the checkpoint is damaged: {error}") from error
            at += length
        if at != len(data):
            raise CheckpointError(f"the checkpoint is damaged: {len(data) - at} bytes too many")
        return cls(known, MappingProxyType(positions))


Checkpoint.EARLIEST = Checkpoint(CheckpointKind.EARLIEST)
Checkpoint.LATEST = Checkpoint(CheckpointKind.LATEST)
