"""Entries into rows: metadata, compression, batches, chunks, and entries that are not messages.

`EntryRows` gets the entries of a slice in order and adds rows. A chunked message belongs to the
slice that has its last chunk; chunks before the slice are fetched through `fetch_before`. Some
entries and messages never become rows: markers, messages compacted out of a batch, chunks whose
message has lost its beginning.
"""

import base64
import logging
from array import array
from collections.abc import Callable, Iterator, Mapping
from typing import TypeVar

from magnetar.arrow.stored.arrow_rows import ArrowRows
from magnetar.arrow.stored.batch_split import split_batch
from magnetar.arrow.stored.chunk_search import Place, SearchedEntries
from magnetar.arrow.stored.errors import CorruptDataError, HeadlessMessageError, UnreachableError
from magnetar.arrow.stored.slices import NO_TIME_MS, NO_VERSION
from magnetar.arrow.stored.stored_values import Part
from magnetar.sdk.wire.compression import decompress
from magnetar.sdk.wire.errors import SdkError
from magnetar.sdk.wire.frames import split_payload
from magnetar.sdk.wire.pulsar_pb2 import MessageMetadata, SingleMessageMetadata

_log = logging.getLogger(__name__)

T = TypeVar("T")

_BASE64_SPACE = b" \t\r\n"
"""Whitespace in base64: encoders break long lines."""

FetchBefore = Callable[[int, int], Iterator[tuple[int, int, bytes]]]
"""Yields the entries before this ledger and entry id, with theirs, nearest first, up to some
bound."""

Decrypt = Callable[[bytes, MessageMetadata], bytes]
"""Returns the body of a message before its producer encrypted it; raises an SdkError if no key
fits."""


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
        """`decrypt` opens encrypted messages; if it is None, they cannot be read."""
        self._rows = rows
        self._decrypt = decrypt
        self._topic = topic
        self._fetch_before = fetch_before
        self._decompressed_bytes_max = decompressed_bytes_max
        self._chunked_bytes_max = chunked_bytes_max
        self._chunks: dict[str, dict[int, bytes]] = {}
        """Messages whose last chunk has not come: id -> number of the chunk -> its body."""
        self._chunk_bytes = 0
        self._searched = SearchedEntries()
        self._has_told = False

    def add(
        self,
        ledger_id: int,
        entry_id: int,
        payload: bytes,
        *,
        skip_through: int = -1,
        stop_at: int = -1,
    ) -> None:
        """Add the messages of an entry; of a batch, those after `skip_through` and up to `stop_at`.

        Both are indexes in the batch. -1 sets no bound.

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
        """Add one row for the whole entry: its number of messages is uncertain as well.

        A batch carries the key of its first message. Its row has none: the others may have any.
        """
        try:
            metadata, _ = split_payload(payload)
        except SdkError:
            metadata = MessageMetadata(publish_time=NO_TIME_MS)
        row = self._rows.add_unreadable(
            problem, ledger_id=ledger_id, entry_id=entry_id, publish_ms=metadata.publish_time
        )
        if row is not None and metadata.num_messages_in_batch <= 1:
            self._add_extras(row, metadata)

    def _add(
        self, ledger_id: int, entry_id: int, payload: bytes, skip_through: int, stop_at: int
    ) -> None:
        metadata, body_at = split_payload(payload)
        if metadata.HasField("marker_type"):
            return  # written by a broker: not a message
        self._searched.read(metadata)
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
        split = split_batch(body, count, memory_bytes_max=self._decompressed_bytes_max)
        parts, lengths, keys, event_ms, singles = split
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
            payloads = split.payloads()
            parts = [payloads[index] for index in indexes]
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
        # Rows of the messages that are left of the batch; usually these are all.
        row_of = None if indexes is None else {index: at for at, index in enumerate(indexes)}
        rows.set_keys(_rows_of(keys, first, row_of))
        rows.set_event_times(_rows_of(event_ms, first, row_of))
        for row, single in _rows_of(singles, first, row_of):
            self._add_extras(row, single)

    def _add_extras(self, row: int, metadata: MessageMetadata | SingleMessageMetadata) -> None:
        """Set the optional fields of a message."""
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
        """Decrypt the body of a message, or of a chunk: each chunk is encrypted by itself."""
        if self._decrypt is None:
            raise CorruptDataError(
                "it is encrypted, and there is no key for it: option privateKeyFile names one"
            )
        return self._decrypt(body, metadata)

    def _assembled(
        self, metadata: MessageMetadata, ledger_id: int, entry_id: int, body: bytes
    ) -> bytes | None:
        """Return the whole body if this is its last chunk, and all others exist; else None."""
        name, count = metadata.uuid, metadata.num_chunks_from_msg
        if not 0 <= metadata.chunk_id < count:
            raise CorruptDataError(f"it is chunk {metadata.chunk_id} of a message of {count}")
        chunks = self._chunks.setdefault(name, {})
        # A producer that sends again after a failure may have stored a chunk twice.
        self._chunk_bytes += len(body) - len(chunks.get(metadata.chunk_id, b""))
        chunks[metadata.chunk_id] = body
        if metadata.chunk_id == count - 1:
            self._take_earlier(metadata, chunks, (ledger_id, entry_id))
            self._searched.ended(name)
            del self._chunks[name]
            self._chunk_bytes -= sum(map(len, chunks.values()))
            if len(chunks) < count:
                return None  # its beginning was trimmed, or never stored
            return b"".join(chunks[index] for index in range(count))
        while self._chunk_bytes > self._chunked_bytes_max and self._chunks:
            # Producers that died between two chunks leave them behind. The oldest are dropped, and
            # fetched again if their message ends after all.
            oldest = next(iter(self._chunks))
            self._searched.dropped(oldest)
            self._chunk_bytes -= sum(map(len, self._chunks.pop(oldest).values()))
        return None

    def _take_earlier(self, last: MessageMetadata, chunks: dict[int, bytes], place: Place) -> None:
        """Look for missing chunks before the slice, or among those that were dropped.

        A search in vain may read a great many entries. What it has passed is noted, and is not
        read again for other messages.

        Raises:
            CorruptDataError: the message is larger than the limit for chunked messages.
        """
        count, searched = last.num_chunks_from_msg, self._searched
        if len(chunks) == count:
            return
        start = searched.start(last, place)
        if start is None:
            return
        if searched.is_all and not searched.may_be_begun(last.uuid):
            self._tell_left_out(*place)
            return
        searched.begin(place)
        size = sum(map(len, chunks.values()))
        for ledger_id, entry_id, payload in self._fetch_before(*start):
            metadata, body_at = split_payload(payload)
            searched.passed((ledger_id, entry_id), metadata)
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
                return  # an earlier message of the producer: the first chunk was never stored
        searched.is_all = True

    def _tell_left_out(self, ledger_id: int, entry_id: int) -> None:
        if not self._has_told:
            self._has_told = True
            _log.warning(
                "%s: message %d:%d is left out, and perhaps others after it: it is the end of a "
                "message in chunks, and its beginning was never stored, or is gone",
                *(self._topic, ledger_id, entry_id),
            )


def _rows_of(
    values: Mapping[int, T], first: int, row_of: Mapping[int, int] | None
) -> Iterator[tuple[int, T]]:
    """Yield what belongs to messages of a batch, by row instead of by index."""
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
        return text  # the flag says base64 and is wrong: keep the text


def _text(found: str | bytes) -> str:
    """Return a string for Spark. Protobuf gives text that is not UTF-8 as bytes."""
    return found if isinstance(found, str) else found.decode("utf-8", "replace")


def _version(metadata: MessageMetadata) -> int:
    """Return the schema version that the message was written with: the broker's own number."""
    version: bytes = metadata.schema_version
    return int.from_bytes(version, "big") if version else NO_VERSION
