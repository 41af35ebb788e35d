"""Assembles chunked messages. Pure; no I/O.

A chunk is an entry whose metadata has `num_chunks_from_msg` above 1, `chunk_id` from 0, and the
`uuid` that all chunks of a message share (docs/formats/pulsar-frame.md). Chunks of one message come
in order, mixed with those of other messages. A message is given up when a chunk is missing, when
the consumer waits too long for the next one, or when too many are incomplete. Its chunks are then
redelivered, or acknowledged. Where neither happens, a later chunk of it is an error: the message
would be lost without a word.

Only waiting counts, not the time since a chunk was opened. The missing chunks may be among the
entries queued here, however slowly the application takes them. So time counts once everything is
opened that had arrived by then, even if the queue is never empty. Then no more counts than lies
between the publish times of the entries opened: the chunks may be stored at the broker, behind a
backlog.

A producer that lost its connection sends again whatever has no receipt, so a chunk may be stored
twice. A second copy that comes after its whole message would wait for the other chunks for ever:
it is acknowledged or redelivered together with that message. It must be the very same chunk,
because returning producers may reuse ids.
"""

import struct
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from magnetar.sdk.batch import EntrySource, MessageBatch
from magnetar.sdk.errors import CorruptMessageError
from magnetar.sdk.message_id import MessageId
from magnetar.sdk.wire.errors import MalformedPayloadError
from magnetar.sdk.wire.pulsar_pb2 import MessageMetadata

_U32 = struct.Struct(">I")

WHOLE_REMEMBERED_MAX = 1_000
"""Complete messages remembered, in case one of their chunks comes once more."""

LOST_REMEMBERED_MAX = 1_000
"""Messages remembered that were given up, until one of their chunks comes."""

EntryKey = tuple[int, int]
"""Ledger id and entry id."""


@dataclass(slots=True)
class _Incomplete:
    chunks: int
    bytes_max: int
    """Size of the whole message, as its chunks state it."""
    entries: list[EntryKey] = field(default_factory=list)
    parts: list[bytes] = field(default_factory=list)
    size: int = 0
    waited_s: float = 0.0
    """Time that the consumer waited for the next chunk."""


@dataclass(frozen=True, slots=True)
class Whole:
    """A message with all its chunks."""

    batch: MessageBatch
    others: list[EntryKey]
    """Entries of all chunks but the last, whose entry is the batch's own."""


@dataclass(frozen=True, slots=True)
class _Done:
    """Record of a message that is complete."""

    entries: list[EntryKey]
    chunks: int
    size: int
    publish_time_ms: int

    def is_repeated_by(self, entry: EntryKey, metadata: MessageMetadata) -> bool:
        """Whether an entry is one of the message's chunks, stored once more."""
        return entry not in self.entries and (
            (self.chunks, self.size, self.publish_time_ms)
            == (
                metadata.num_chunks_from_msg,
                metadata.total_chunk_msg_size,
                metadata.publish_time,
            )
        )


class ChunkAssembly:
    """Incomplete messages of one consumer."""

    def __init__(
        self,
        source: EntrySource,
        *,
        messages_max: int,
        bytes_max: int,
        age_s: float,
        tells_lost: bool,
        on_given_up: Callable[[list[EntryKey]], None],
        on_superseded: Callable[[list[EntryKey]], None],
        on_repeated: Callable[[EntryKey, EntryKey], None],
    ) -> None:
        """Create an empty assembly.

        `tells_lost`: whether a chunk of a message that was given up raises an error.
        `on_given_up` gets the entries of a message that will not be completed here. `on_superseded`
        gets the entries of chunks that their producer has sent again. `on_repeated` gets the last
        entry of a complete message, and the entry of a second copy of one of its chunks.
        """
        # A chunked message is larger than others, and has a bound of its own.
        larger = max(source.decompressed_bytes_max, bytes_max)
        self._source = replace(source, decompressed_bytes_max=larger)
        self._messages_max = messages_max
        self._bytes_max = bytes_max
        self._age_s = age_s
        self._tells_lost = tells_lost
        self._on_given_up = on_given_up
        self._on_superseded = on_superseded
        self._on_repeated = on_repeated
        self._done: OrderedDict[str, _Done] = OrderedDict()
        self._incomplete: dict[str, _Incomplete] = {}
        self._awaited: list[EntryKey] = []
        """First chunks of messages that were incomplete when everything was to be redelivered, and
        were not passed since."""
        self._lost: OrderedDict[str, tuple[EntryKey, str]] = OrderedDict()
        """First chunk of each message that was given up, and the reason."""
        self._size = 0

    def __len__(self) -> int:
        return len(self._incomplete)

    @property
    def bytes_held(self) -> int:
        return self._size

    @property
    def is_under_way(self) -> bool:
        """Whether a message is incomplete, even if it is to be redelivered first."""
        return bool(self._incomplete or self._awaited)

    @property
    def first_incomplete(self) -> EntryKey | None:
        """The first chunk of the oldest incomplete message, even if it is to be redelivered first;
        None if there is none. Only for deliveries in order."""
        if not self.is_under_way:
            return None
        return min([*(each.entries[0] for each in self._incomplete.values()), *self._awaited])

    def pass_entry(self, entry: EntryKey) -> None:
        """Record that an entry is opened: messages awaited before it are acknowledged or trimmed,
        or the subscription was moved past them."""
        if self._awaited:
            self._awaited = [each for each in self._awaited if each > entry]

    def add(self, batch: MessageBatch) -> Whole | None:
        """Take a chunk; return the message if it is complete now.

        Raises:
            MalformedPayloadError: the message is larger than the bound, or its fields are
                contradictory.
            CorruptMessageError: the message was given up. Raised once for each message; its
                `message_id` leads to the first chunk.
        """
        metadata = batch.metadata
        chunks, index, uuid = metadata.num_chunks_from_msg, metadata.chunk_id, metadata.uuid
        size = metadata.total_chunk_msg_size
        if not 0 <= index < chunks or size > self._bytes_max:
            self._give_up(uuid)
            raise MalformedPayloadError(
                f"chunk {index} of {chunks}, {size} bytes in all; allowed are {self._bytes_max}"
            )
        entry = (batch.ledger_id, batch.entry_id)
        self.pass_entry(entry)
        found = self._incomplete.get(uuid)
        if found is not None and entry in found.entries:
            return None  # a redelivery of a chunk that is held
        done = self._done.get(uuid)
        if found is None and done is not None and done.is_repeated_by(entry, metadata):
            self._on_repeated(done.entries[-1], entry)
            return None
        if index == 0:
            if found is not None:
                self._size -= found.size
                del self._incomplete[uuid]
                self._on_superseded(found.entries)
            self._make_room()
            self._lost.pop(uuid, None)
            found = self._incomplete[uuid] = _Incomplete(chunks, size)
        elif found is not None and index < len(found.parts) and chunks == found.chunks:
            self._on_superseded([entry])  # this chunk is held already: its producer had no receipt
            return None
        if found is None or index != len(found.parts) or chunks != found.chunks:
            self._give_up(uuid, "a chunk is missing")
            self._on_given_up([entry])
            self._check_lost(uuid, batch)
            return None
        part = batch.travelled_body
        found.entries.append(entry)
        found.parts.append(part)
        found.size += len(part)
        found.waited_s = 0.0
        self._size += len(part)
        if found.size > found.bytes_max:
            self._give_up(uuid)
            raise MalformedPayloadError(f"the chunks are more than the {size} bytes they state")
        while self._size > self._bytes_max and len(self._incomplete) > 1:
            oldest = next(each for each in self._incomplete if each != uuid)
            self._give_up(oldest, "incomplete messages exceeded chunked_message_bytes_max")
        return self._whole(uuid, batch) if len(found.parts) == chunks else None

    def clear(self) -> None:
        """Forget the chunks: the broker begins again. It has yet to be seen whether the incomplete
        messages come again. What was given up stays known: its beginning may be acknowledged, and
        if it comes again, it begins anew."""
        begun = (each.entries[0] for each in self._incomplete.values())
        self._awaited = sorted({*self._awaited, *begun})
        self._incomplete.clear()
        self._done.clear()
        self._size = 0

    def wait(self, seconds: float) -> None:
        """Add to the time that the incomplete messages were waited for; give up those of which no
        chunk came for too long. For time by whose end no entry had arrived that is not opened."""
        for uuid, incomplete in list(self._incomplete.items()):
            incomplete.waited_s += seconds
            if incomplete.waited_s >= self._age_s:
                self._give_up(uuid, "no chunk came for chunked_message_age_ms")

    def _whole(self, uuid: str, last: MessageBatch) -> Whole:
        done = self._incomplete.pop(uuid)
        self._size -= done.size
        metadata = last.metadata.SerializeToString()
        batch = MessageBatch(
            b"".join((_U32.pack(len(metadata)), metadata, *done.parts)),
            self._source,
            last.ledger_id,
            last.entry_id,
            last.redelivery_count,
        )
        self._remember(uuid, done, last.metadata.publish_time)
        batch.first_chunk = MessageId(*done.entries[0], -1, last.partition)
        batch.round = last.round
        return Whole(batch, done.entries[:-1])

    def _remember(self, uuid: str, whole: _Incomplete, publish_time_ms: int) -> None:
        self._done.pop(uuid, None)
        self._done[uuid] = _Done(whole.entries, whole.chunks, whole.bytes_max, publish_time_ms)
        if len(self._done) > WHOLE_REMEMBERED_MAX:
            self._done.popitem(last=False)

    def _make_room(self) -> None:
        while len(self._incomplete) >= self._messages_max:
            oldest = next(iter(self._incomplete))
            self._give_up(oldest, "chunked_messages_max others were incomplete")

    def _give_up(self, uuid: str, reason: str | None = None) -> None:
        """Give a message up if it is incomplete here. Without a reason the caller reports it."""
        given_up = self._incomplete.pop(uuid, None)
        if given_up is None:
            return
        self._size -= given_up.size
        self._on_given_up(given_up.entries)
        if self._tells_lost and reason is not None:
            self._lost[uuid] = given_up.entries[0], reason
            if len(self._lost) > LOST_REMEMBERED_MAX:
                self._lost.popitem(last=False)

    def _check_lost(self, uuid: str, batch: MessageBatch) -> None:
        """Report that a message was given up of which one more chunk has come.

        Raises:
            CorruptMessageError
        """
        lost = self._lost.pop(uuid, None)
        if lost is not None:
            first, reason = MessageId(*lost[0], -1, batch.partition), lost[1]
            raise CorruptMessageError(
                replace(batch.message_id, first_chunk=first),
                f"the chunked message from {first} on was given up: {reason}; seek to this id to "
                "receive it again",
            )
