"""Reading what was stored after a snapshot, to know which sequence ids it holds."""

from typing import Protocol

from google.protobuf.message import DecodeError

from magnetar.broker.features.deduplication.sequence_ids import SEQUENCE_ID_MAX, SequenceIds
from magnetar.ledger.position import Position
from magnetar.sdk.wire import MalformedPayloadError, MessageMetadata, split_payload


class ReplayedLog(Protocol):
    """What a replay needs of a log; `ManagedLog` is one."""

    @property
    def last_confirmed(self) -> Position: ...

    def next_position(self, position: Position, /) -> Position: ...

    async def read_range(
        self, start: Position, /, *, entries_max: int, bytes_max: int
    ) -> tuple[Position, list[bytes]]: ...


async def replay(
    log: ReplayedLog,
    after: Position,
    ids: SequenceIds,
    *,
    now_s: float,
    entries_max: int,
    bytes_max: int,
) -> int:
    """Note all entries behind `after`; returns how many there were. The limits are of one read.

    Raises:
        LedgerError: not all of them can be read now.
    """
    count = 0
    position = log.next_position(after)
    while position <= log.last_confirmed:
        first, entries = await log.read_range(
            position, entries_max=entries_max, bytes_max=bytes_max
        )
        if not entries:
            break
        for entry in entries:
            known = sequence_id_of(entry)
            if known is not None:
                ids.replayed(*known, now_s)
        count += len(entries)
        last = Position(first.ledger_id, first.entry_id + len(entries) - 1)
        position = log.next_position(last)
    return count


def sequence_id_of(entry: bytes) -> tuple[str, int] | None:
    """Producer name and highest sequence id of a stored entry; None: it says nothing of that."""
    try:
        metadata, _ = split_payload(entry)
    except (DecodeError, MalformedPayloadError):
        return None
    if metadata.HasField("marker_type") or is_open_chunk(metadata):
        return None
    highest = max(metadata.sequence_id, metadata.highest_sequence_id)
    return metadata.producer_name, min(highest, SEQUENCE_ID_MAX)


def is_open_chunk(metadata: MessageMetadata) -> bool:
    """Whether the entry is a chunk with others of its message behind it."""
    chunks: int = metadata.num_chunks_from_msg
    return chunks > 1 and metadata.chunk_id != chunks - 1
