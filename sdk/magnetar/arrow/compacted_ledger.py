"""The compacted ledger of a topic as rows: the newest message of each key, up to a horizon.

Each entry is an entry of the topic, preceded by its position there
(docs/formats/compacted-ledger.md). Brokers read the compacted ledger only for consumers, under the
positions of the topic. Readers here therefore read it from the bookies. The next compaction of the
topic deletes it: a reader then has to plan again.
"""

import struct
import sys
from collections.abc import Iterator
from dataclasses import replace

import pyarrow as pa

from magnetar.arrow.errors import CorruptDataError, DataLossError
from magnetar.arrow.slice_rows import BoundedEntryRows
from magnetar.arrow.stored.arrow_rows import ArrowRows
from magnetar.arrow.stored.encrypted_messages import decryption_of
from magnetar.arrow.stored.ledger_reads import LedgerReads
from magnetar.arrow.stored.slice_reader import CHUNK_LOOK_BACK_ENTRIES_MAX
from magnetar.arrow.stored.slices import LedgerPart, Slice

NO_LEDGER = -1
"""Ledger id of a topic that has no compacted ledger."""

_FORMAT = 1
_HEAD = struct.Struct(">Bqq")
_LOOK_BACK_ENTRIES = 64
"""Entries that are fetched together while searching backwards for the beginning of a chunked
message."""


def unpack(stored: bytes) -> tuple[int, int, bytes]:
    """Split an entry of a compacted ledger into the topic's ledger id, its entry id, and the rest.

    Raises:
        CorruptDataError: the entry is not of a compacted ledger, or its format is unknown here.
    """
    if len(stored) < _HEAD.size or stored[0] != _FORMAT:
        raise CorruptDataError(
            f"an entry of a compacted ledger begins with {bytes(stored[:1]).hex() or 'nothing'}, "
            f"and this release reads format {_FORMAT}"
        )
    _, ledger_id, entry_id = _HEAD.unpack_from(stored)
    return ledger_id, entry_id, stored[_HEAD.size :]


def place_of_last(wanted: Slice) -> tuple[int, int]:
    """Return the position in the topic of the last entry of a slice of its compacted ledger.

    Raises:
        DataLossError: the ledger is gone.
        CorruptDataError, UnreachableError
    """
    part = wanted.parts[-1]
    reads = _reads_of(wanted)
    try:
        ledger_id, entry_id, _ = unpack(reads.one(part, part.last))
    except DataLossError as error:
        raise _gone(wanted, part) from error
    finally:
        reads.close()
    return ledger_id, entry_id


class CompactedRows:
    """The rows of a slice of a compacted ledger. For one thread."""

    def __init__(self, wanted: Slice, rows: ArrowRows) -> None:
        """`rows` must collect this slice alone."""
        settings = wanted.settings
        self._slice = wanted
        self._rows = rows
        self._at: tuple[LedgerPart, int] | None = None
        """Part and entry id of the compacted entry that is being decoded."""
        self._place = (-1, -1)
        """Position of its entry in the topic."""
        self._looked_back_to = sys.maxsize
        """Lowest entry id of a compacted entry that `_before` has yielded."""
        self._entries = BoundedEntryRows(
            rows,
            topic=wanted.topic,
            fetch_before=self._before,
            decompressed_bytes_max=settings.decompressed_bytes_max,
            chunked_bytes_max=settings.chunked_bytes_max,
            decrypt=decryption_of(settings.private_key_file),
        )

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Yield the rows in order, under the positions that the messages have in the topic.

        Raises:
            DataLossError: the ledger is gone.
            CorruptDataError, MemoryLimitError, SchemaMismatchError, UnreachableError
        """
        reads = _reads_of(self._slice)
        part = self._slice.parts[0]
        try:
            for part in self._slice.parts:
                for first, found in reads.entries(part):
                    for number, stored in enumerate(found, first):
                        self._at = (part, number)
                        ledger_id, entry_id, payload = unpack(stored)
                        self._place = (ledger_id, entry_id)
                        self._entries.add(ledger_id, entry_id, payload)
                        if self._rows.is_full:
                            yield from self._taken()
        except DataLossError as error:
            raise _gone(self._slice, part) from error
        finally:
            reads.close()
        if self._rows.rows:
            yield from self._taken()

    def _taken(self) -> Iterator[pa.RecordBatch]:
        batch = self._rows.take()
        if batch.num_rows:
            yield batch

    def _before(self, ledger_id: int, entry_id: int) -> Iterator[tuple[int, int, bytes]]:
        """Yield the entries before the one that is being decoded, nearest first; or, given another
        position, those before all that were yielded so far.

        The compacted ledger has all chunks of a message, or none.
        """
        assert self._at is not None
        part, number = self._at
        if (ledger_id, entry_id) != self._place:
            number = min(number, self._looked_back_to)
        lowest = max(0, number - CHUNK_LOOK_BACK_ENTRIES_MAX)
        reads = _reads_of(self._slice)  # the other reads are in the middle of an answer
        try:
            for behind in range(number, lowest, -_LOOK_BACK_ENTRIES):
                first = max(lowest, behind - _LOOK_BACK_ENTRIES)
                some = replace(part, first=first, last=behind - 1, length=-1)
                found = [
                    (at, unpack(each))
                    for at_first, run in reads.entries(some)
                    for at, each in enumerate(run, at_first)
                ]
                for at, entry in reversed(found):
                    self._looked_back_to = min(self._looked_back_to, at)
                    yield entry
        finally:
            reads.close()


def _gone(wanted: Slice, part: LedgerPart) -> DataLossError:
    return DataLossError(
        f"{wanted.topic}: its compacted ledger {part.ledger_id} is gone: the topic was compacted "
        f"again, or deleted, while it was read; begin anew"
    )


def _reads_of(wanted: Slice) -> LedgerReads:
    """Open reads of the bookies that a slice names.

    Raises:
        OptionError: a file of the bookies' security cannot be used.
    """
    settings = wanted.settings
    return LedgerReads(
        wanted.addresses,
        request_bytes=settings.request_bytes,
        bookie_timeout_ms=settings.bookie_timeout_ms,
        security=settings.bookie_security,
    )
