"""Sequence ids that say how far a batch was written, and with which rows. Pure.

A task of a query writes to a topic under a name that every attempt of it has, and the broker's
deduplication keeps the highest sequence id stored under that name. The sink makes that one number
the whole memory of a batch that was interrupted:

    bit 62 … 43   batch id, modulo 2^20 (higher bits are in the producer's name)
    bit 42 … 15   rows of the batch stored so far, by this task on this topic
    bit 14 …  0   checksum of those rows: CRC32C of their encoding, folded to 15 bits

The numbers ascend, as deduplication needs: within a batch by rows, then from batch to batch.
An attempt that comes later is told the number when it attaches, once no write under the name is
under way. It skips the rows that are stored. The checksum says whether the rows it skips are those
that are stored: position alone would drop rows that were never written if a retry brought them in
another order.
"""

from dataclasses import dataclass

import google_crc32c

BATCH_BITS = 20
ROW_BITS = 28
CHECKSUM_BITS = 15

BATCHES_PER_NAME = 1 << BATCH_BITS
ROWS_MAX = (1 << ROW_BITS) - 1
"""Rows of one task on one topic in one batch of a stream."""
ROWS_MAX_ALONE = (1 << (BATCH_BITS + ROW_BITS)) - 1
"""The same for a name that has one batch only: its row count may use the bits of the batch."""

_CHECKSUM_MASK = (1 << CHECKSUM_BITS) - 1


@dataclass(frozen=True, slots=True)
class Progress:
    """How many rows of a task's batch are stored, and their checksum."""

    rows: int = 0
    checksum: int = 0


def fold(crc32c: int) -> int:
    """32 bits to 15, so that each of the 32 counts."""
    return (crc32c ^ crc32c >> CHECKSUM_BITS ^ crc32c >> 2 * CHECKSUM_BITS) & _CHECKSUM_MASK


def extend(crc32c: int, data: bytes) -> int:
    """The checksum over what it covers already and `data`."""
    value: int = google_crc32c.extend(crc32c, data)
    return value


def sequence_id(batch_id: int, rows: int, crc32c: int) -> int:
    """The id after `rows` rows with that checksum. `batch_id` is 0 for a name with one batch."""
    batch = batch_id % BATCHES_PER_NAME
    return ((batch << ROW_BITS) + rows) << CHECKSUM_BITS | fold(crc32c)


def progress(batch_id: int | None, last_sequence_id: int) -> Progress | None:
    """What the last stored id says of a batch; None: a later batch is stored, so this one is whole.

    `batch_id` is None for a name that has one batch only. `last_sequence_id` is -1 if nothing is
    stored under the name.
    """
    if last_sequence_id < 0:
        return Progress()
    counted = last_sequence_id >> CHECKSUM_BITS
    checksum = last_sequence_id & _CHECKSUM_MASK
    if batch_id is None:
        return Progress(counted, checksum)
    batch, wanted = counted >> ROW_BITS, batch_id % BATCHES_PER_NAME
    if batch > wanted:
        return None
    return Progress(counted & ROWS_MAX, checksum) if batch == wanted else Progress()


def producer_name(query: str, batch_id: int | None, partition_id: int) -> str:
    """The name of a task's producer: the same for every attempt of it."""
    if batch_id is None:
        return f"magnetar-spark-{query}-{partition_id}"
    generation = batch_id // BATCHES_PER_NAME
    suffix = f"-{generation}" if generation else ""
    return f"magnetar-spark-{query}-{partition_id}{suffix}"
