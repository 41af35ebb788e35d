"""Entries into rows: metadata, compression, batches, chunks, and what is no message of a producer.

`EntryRows` gets the entries of a slice in order and adds rows. A message that was cut into chunks
belongs to the slice that has its last chunk; chunks before the slice are fetched through
`fetch_before`. What never is a row: markers, messages compacted out of a batch, chunks whose
message has lost its beginning.

`split_batch` splits the body of a batch into payloads, as fast as Python can. Layout:
docs/formats/pulsar-frame.md, "Batch body": per message a size (u32), a `SingleMessageMetadata`, the
payload. Three ways, by what the batch looks like:

- all messages have one size and nothing but it and a sequence id: the whole body is cut by a few
  operations on columns of bytes, whatever the number of messages;
- a message has nothing but these two and a short key or an event time: its metadata is read byte
  by byte, 0.4 us and as much for each of these;
- it has properties, or anything else: by protobuf.
"""

import base64
import struct
from array import array
from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple, TypeVar

import numpy as np
from google.protobuf.message import DecodeError

from magnetar.arrow.stored.arrow_rows import ArrowRows
from magnetar.arrow.stored.errors import CorruptDataError, HeadlessMessageError, UnreachableError
from magnetar.arrow.stored.slices import NO_TIME_MS, NO_VERSION
from magnetar.arrow.stored.stored_values import Lengths, Part
from magnetar.sdk.wire.compression import decompress
from magnetar.sdk.wire.errors import MalformedPayloadError, SdkError
from magnetar.sdk.wire.frames import split_payload
from magnetar.sdk.wire.pulsar_pb2 import MessageMetadata, SingleMessageMetadata

_u32_at = struct.Struct(">I").unpack_from
_parse_single = SingleMessageMetadata.FromString

_PAYLOAD_SIZE = 0x18
_SEQUENCE_ID = 0x40
"""Tags of the two fields that every message has."""

_PARTITION_KEY = 0x12
_EVENT_TIME = 0x28
"""Tags of two that many have."""

_TIME_BYTES = 6
"""Width of a varint of milliseconds since 1970, in the years 1971 to 2109: 2^35 to 2^42."""

_TIMES_HIGH_MAX = 4096
"""Entries of a table: as many stretches of 16 s."""

_UNIFORM_MIN = 8
"""Smaller batches are not worth the look."""


class _TimesHigh(dict[bytes, int]):
    """The last four bytes of a varint of six -> their part of its value; 0 if they are no end.

    They are the same for 16 s, and most batches have times that are close to each other.
    """

    def __missing__(self, varint_end: bytes) -> int:
        (raw,) = _u32_at(varint_end) if len(varint_end) == 4 else (0,)
        value: int = 0
        if raw & 0x8080_8080 == 0x8080_8000:
            for byte in reversed(varint_end):
                value = (value | byte & 127) << 7
            value <<= 7
        if len(self) >= _TIMES_HIGH_MAX:
            self.clear()
        self[varint_end] = value
        return value


_TIMES_HIGH = _TimesHigh()


class SplitBatch(NamedTuple):
    """The messages of a batch."""

    parts: list[memoryview]
    """Payloads; all of them in one if the batch is uniform."""
    lengths: Lengths
    """Size of each payload."""
    keys: dict[int, bytes]
    """By index, of the messages that are not in `singles`; as are the times."""
    event_ms: dict[int, int]
    singles: dict[int, SingleMessageMetadata]
    """Metadata of the messages that have more than these fields, by index."""
    is_uniform: bool


def split_batch(body: bytes | memoryview, count: int) -> SplitBatch:
    """Split the body of a batch of `count` messages.

    Raises:
        MalformedPayloadError: truncated, bytes left over, or metadata that cannot be read.
    """
    if count >= _UNIFORM_MIN:
        uniform = _split_uniform(body, count)
        if uniform is not None:
            return uniform
    return _split_each(body, count)


def _split_uniform(body: bytes | memoryview, count: int) -> SplitBatch | None:
    stride, left = divmod(len(body), count)
    if left or stride < 8:
        return None
    (header_bytes,) = _u32_at(body, 0)
    data_at = 4 + header_bytes
    if not 6 <= header_bytes <= 16 or data_at >= stride or body[4] != _PAYLOAD_SIZE:
        return None
    at, size, shift = 5, 0, 0
    while True:
        byte = body[at]
        size |= (byte & 127) << shift
        at, shift = at + 1, shift + 7
        if byte < 128:
            break
        if at >= data_at:
            return None
    if data_at + size != stride or at + 1 >= data_at or body[at] != _SEQUENCE_ID:
        return None
    # What must be the same in all messages: sizes and tags. Compared a column at a time.
    messages = np.frombuffer(body, np.uint8).reshape(count, stride)
    for column in range(at + 1):
        if (messages[:, column] != body[column]).any():
            return None
    # The sequence ids are varints of one width: all but their last bytes have the top bit.
    for column in range(at + 1, data_at - 1):
        if (messages[:, column] < 128).any():
            return None
    if (messages[:, data_at - 1] >= 128).any():
        return None
    data = np.ascontiguousarray(messages[:, data_at:]).data.cast("B")
    return SplitBatch([data], array("q", (size,)) * count, {}, {}, {}, True)


def _split_each(body: bytes | memoryview, count: int) -> SplitBatch:
    view = memoryview(body)
    parts: list[memoryview] = []
    lengths: list[int] = []
    keys: dict[int, bytes] = {}
    event_ms: dict[int, int] = {}
    singles: dict[int, SingleMessageMetadata] = {}
    times_high = _TIMES_HIGH
    add_part, add_length = parts.append, lengths.append
    at, end = 0, len(view)
    try:
        for index in range(count):
            start = after = at + 4
            data = start + _u32_at(view, at)[0]
            size = -1
            if view[start] == _PARTITION_KEY and (length := view[start + 1]) < 128:
                # Encoders in the order of the fields write the key first.
                after = start + 2 + length
                keys[index] = bytes(view[start + 2 : after])
            if view[after] == _PAYLOAD_SIZE:
                size = view[after + 1]
                after += 2
                if size >= 128:
                    high = view[after]
                    size = (size & 127 | high << 7) if high < 128 else -1
                    after += 1
            while after < data and size >= 0:
                tag = view[after]
                if tag == _SEQUENCE_ID:
                    after += 1
                    while view[after] >= 128:
                        after += 1
                    after += 1
                elif tag == _PARTITION_KEY and (length := view[after + 1]) < 128:
                    keys[index] = bytes(view[after + 2 : after + 2 + length])
                    after += 2 + length
                elif (
                    tag == _EVENT_TIME
                    and (low := view[after + 1]) >= 128
                    and (middle := view[after + 2]) >= 128
                    and (high_ms := times_high[bytes(view[after + 3 : after + 7])])
                ):
                    event_ms[index] = high_ms | (middle & 127) << 7 | low & 127
                    after += 1 + _TIME_BYTES
                else:
                    size = -1
            if size < 0 or after != data:
                keys.pop(index, None)
                event_ms.pop(index, None)
                single = _parse_single(bytes(view[start:data]))
                singles[index] = single
                size = single.payload_size
            at = data + size
            if at > end or size < 0:
                raise MalformedPayloadError(
                    f"message {index} of a batch of {count} ends beyond the body"
                )
            add_part(view[data:at])
            add_length(size)
    except (struct.error, IndexError, DecodeError) as error:
        raise MalformedPayloadError(
            f"message {len(parts)} of a batch of {count}: {error}"
        ) from error
    if at != end:
        raise MalformedPayloadError(f"{end - at} bytes behind the last message of a batch")
    return SplitBatch(parts, array("q", lengths), keys, event_ms, singles, False)


T = TypeVar("T")

_BASE64_SPACE = b" \t\r\n"
"""Encoders put line breaks into what is long."""

FetchBefore = Callable[[int, int], Iterator[bytes]]
"""The entries before one of this ledger and entry id, nearest first; ends at some bound."""

Decrypt = Callable[[bytes, MessageMetadata], bytes]
"""The body of a message before its producer encrypted it; raises an SdkError if no key fits."""


class EntryRows:
    """Adds the messages of entries to Arrow rows."""

    def __init__(
        self,
        rows: ArrowRows,
        *,
        topic: str,
        fetch_before: FetchBefore,
        decompressed_bytes_max: int,
        chunked_bytes_max: int,
        decrypt: Decrypt | None = None,
    ) -> None:
        """`decrypt`: opens messages that producers have encrypted; None: they cannot be read."""
        self._rows = rows
        self._decrypt = decrypt
        self._topic = topic
        self._fetch_before = fetch_before
        self._decompressed_bytes_max = decompressed_bytes_max
        self._chunked_bytes_max = chunked_bytes_max
        self._chunks: dict[str, dict[int, bytes]] = {}
        """Messages whose last chunk has not come: id -> number of the chunk -> its body."""
        self._chunk_bytes = 0

    def add(
        self,
        ledger_id: int,
        entry_id: int,
        payload: bytes,
        *,
        skip_through: int = -1,
        stop_at: int = -1,
    ) -> None:
        """Add the messages of an entry; of a batch those behind index `skip_through`, and up to
        `stop_at` unless that is -1.

        Raises:
            CorruptDataError: the entry cannot be read, or no key opens it, with mode FAILFAST.
            HeadlessMessageError, UnreachableError
        """
        try:
            self._add(ledger_id, entry_id, payload, skip_through, stop_at)
        except UnreachableError:
            raise
        except SdkError as error:
            said = f"{self._topic}: message {ledger_id}:{entry_id}: {error}"
            if isinstance(error, HeadlessMessageError):
                raise HeadlessMessageError(said) from error
            if self._rows.fails_fast:
                raise CorruptDataError(
                    f"{said}; set mode to PERMISSIVE or DROPMALFORMED to go on"
                ) from error
            self._add_unreadable(ledger_id, entry_id, payload, str(error))

    def _add_unreadable(self, ledger_id: int, entry_id: int, payload: bytes, problem: str) -> None:
        """One row for all of the entry: how many messages it has is not sure either."""
        try:
            metadata, _ = split_payload(payload)
        except SdkError:
            metadata = MessageMetadata(publish_time=NO_TIME_MS)
        row = self._rows.add_unreadable(
            problem, ledger_id=ledger_id, entry_id=entry_id, publish_ms=metadata.publish_time
        )
        if row is not None:
            self._add_extras(row, metadata)

    def _add(
        self, ledger_id: int, entry_id: int, payload: bytes, skip_through: int, stop_at: int
    ) -> None:
        metadata, body_at = split_payload(payload)
        if metadata.HasField("marker_type"):
            return  # written by a broker: no message
        body: Part = memoryview(payload)[body_at:]
        if metadata.encryption_keys:
            body = self._opened(metadata, bytes(body))
        if metadata.num_chunks_from_msg > 1:
            whole = self._assembled(metadata, ledger_id, entry_id, bytes(body))
            if whole is None:
                return
            body = whole
        if metadata.compression:
            body = decompress(
                metadata.compression,
                bytes(body),
                size=metadata.uncompressed_size,
                bytes_max=max(self._decompressed_bytes_max, self._chunked_bytes_max)
                if metadata.num_chunks_from_msg > 1
                else self._decompressed_bytes_max,
            )
        if metadata.HasField("num_messages_in_batch"):
            self._add_batch(metadata, ledger_id, entry_id, body, skip_through, stop_at)
        else:
            self._add_single(metadata, ledger_id, entry_id, body)

    def _add_single(
        self, metadata: MessageMetadata, ledger_id: int, entry_id: int, body: Part
    ) -> None:
        rows = self._rows
        row = rows.add_single(
            body,
            ledger_id=ledger_id,
            entry_id=entry_id,
            publish_ms=metadata.publish_time,
            schema_version=_version(metadata),
        )
        self._add_extras(row, metadata)

    def _add_batch(
        self,
        metadata: MessageMetadata,
        ledger_id: int,
        entry_id: int,
        body: Part,
        skip_through: int,
        stop_at: int,
    ) -> None:
        count = metadata.num_messages_in_batch
        parts, lengths, keys, event_ms, singles, is_uniform = split_batch(body, count)
        if not lengths:
            return
        indexes: list[int] | None = None
        last = count - 1 if stop_at < 0 else min(stop_at, count - 1)
        is_cut = skip_through >= 0 or last < count - 1
        if is_cut or any(each.compacted_out for each in singles.values()):
            indexes = [
                index
                for index in range(max(0, skip_through + 1), last + 1)
                if index not in singles or not singles[index].compacted_out
            ]
            if not indexes:
                return
            if is_uniform:
                size = lengths[0]
                parts = [parts[0][index * size : (index + 1) * size] for index in indexes]
            else:
                parts = [parts[index] for index in indexes]
            lengths = array("q", [lengths[index] for index in indexes])
        first = self._rows.add_entry(
            parts,
            lengths,
            ledger_id=ledger_id,
            entry_id=entry_id,
            publish_ms=metadata.publish_time,
            schema_version=_version(metadata),
            indexes=indexes,
        )
        if not (keys or event_ms or singles):
            return
        rows = self._rows
        # Where the rows are that are left of the batch; usually it is all of them.
        row_of = None if indexes is None else {index: at for at, index in enumerate(indexes)}
        rows.set_keys(_rows_of(keys, first, row_of))
        rows.set_event_times(_rows_of(event_ms, first, row_of))
        for row, single in _rows_of(singles, first, row_of):
            self._add_extras(row, single)

    def _add_extras(self, row: int, metadata: MessageMetadata | SingleMessageMetadata) -> None:
        """What not every message has."""
        rows = self._rows
        if metadata.HasField("partition_key"):
            rows.set_key(row, _key(metadata))
        if metadata.event_time:
            rows.set_event_ms(row, metadata.event_time)
        if metadata.properties:
            last = {_text(each.key): _text(each.value) for each in metadata.properties}
            rows.set_properties(row, list(last.items()))
        if metadata.null_value:
            rows.set_null(row)

    def _opened(self, metadata: MessageMetadata, body: bytes) -> bytes:
        """The body of an encrypted message, or of a chunk of one: each is encrypted by itself."""
        if self._decrypt is None:
            raise CorruptDataError(
                "it is encrypted, and there is no key for it: option privateKeyFile names one"
            )
        return self._decrypt(body, metadata)

    def _assembled(
        self, metadata: MessageMetadata, ledger_id: int, entry_id: int, body: bytes
    ) -> bytes | None:
        """The whole body if this is its last chunk, and all others are there."""
        name, count = metadata.uuid, metadata.num_chunks_from_msg
        if not 0 <= metadata.chunk_id < count:
            raise CorruptDataError(f"it is chunk {metadata.chunk_id} of a message of {count}")
        chunks = self._chunks.setdefault(name, {})
        # A producer that sends again after a failure may have stored a chunk twice.
        self._chunk_bytes += len(body) - len(chunks.get(metadata.chunk_id, b""))
        chunks[metadata.chunk_id] = body
        if metadata.chunk_id == count - 1:
            self._take_earlier(metadata, chunks, ledger_id, entry_id)
            del self._chunks[name]
            self._chunk_bytes -= sum(map(len, chunks.values()))
            if len(chunks) < count:
                return None  # its beginning was trimmed, or never stored
            return b"".join(chunks[index] for index in range(count))
        while self._chunk_bytes > self._chunked_bytes_max and self._chunks:
            # Producers that died between two chunks leave them: the oldest go, and are fetched
            # again if their message ends after all.
            oldest = next(iter(self._chunks))
            self._chunk_bytes -= sum(map(len, self._chunks.pop(oldest).values()))
        return None

    def _take_earlier(
        self, last: MessageMetadata, chunks: dict[int, bytes], ledger_id: int, entry_id: int
    ) -> None:
        """Look for missing chunks before the slice, or among what was dropped.

        Raises:
            CorruptDataError: the message is larger than may be put together.
        """
        count = last.num_chunks_from_msg
        if len(chunks) == count:
            return
        size = sum(map(len, chunks.values()))
        for payload in self._fetch_before(ledger_id, entry_id):
            metadata, body_at = split_payload(payload)
            if metadata.uuid == last.uuid and metadata.num_chunks_from_msg == count:
                if metadata.chunk_id == count - 1:
                    return  # the message ended there; this chunk was stored a second time
                if metadata.chunk_id not in chunks:
                    body = payload[body_at:]
                    if metadata.encryption_keys:
                        body = self._opened(metadata, body)
                    chunks[metadata.chunk_id] = body
                    self._chunk_bytes += len(body)
                    size += len(body)
                    if size > self._chunked_bytes_max:
                        raise CorruptDataError(
                            f"it is a message of {size} bytes in {len(chunks)} chunks and more; "
                            f"option maxChunkedBytes allows {self._chunked_bytes_max}"
                        )
                if metadata.chunk_id == 0 or len(chunks) == count:
                    return
            elif (
                metadata.producer_name == last.producer_name
                and metadata.sequence_id < last.sequence_id
            ):
                return  # what it sent before this message: the first chunk was never stored


def _rows_of(
    values: Mapping[int, T], first: int, row_of: Mapping[int, int] | None
) -> Iterator[tuple[int, T]]:
    """What belongs to messages of a batch, by row instead of by index."""
    if row_of is None:
        return ((first + index, value) for index, value in values.items())
    return ((first + row_of[index], value) for index, value in values.items() if index in row_of)


def _key(metadata: MessageMetadata | SingleMessageMetadata) -> bytes:
    key: str | bytes = metadata.partition_key
    text = key if isinstance(key, bytes) else key.encode()
    if not metadata.partition_key_b64_encoded:
        return text
    try:
        return base64.b64decode(text.translate(None, _BASE64_SPACE), validate=True)
    except ValueError:
        return text  # it says base64 and is none: the text is all there is


def _text(found: str | bytes) -> str:
    """What protobuf gives as bytes is no UTF-8, and Spark's strings are."""
    return found if isinstance(found, str) else found.decode("utf-8", "replace")


def _version(metadata: MessageMetadata) -> int:
    """Of the schema that the message was written with: the broker's own number."""
    version: bytes = metadata.schema_version
    return int.from_bytes(version, "big") if version else NO_VERSION
