"""A slice of which entries are lost: all that is left comes, or nothing does."""

from collections.abc import Iterator

import pytest
from pyspark.sql.types import BinaryType, StructField, StructType

from magnetar.sdk.spark import slice_reader
from magnetar.sdk.spark.errors import DataLossError, EntryLossError
from magnetar.sdk.spark.slice_reader import read_slice
from magnetar.sdk.spark.slices import LedgerPart, ReadSettings, Slice
from magnetar.sdk.wire.payload import encode_payload
from magnetar.sdk.wire.pulsar_pb2 import MessageMetadata

SCHEMA = StructType([StructField("value", BinaryType())])
HEAD = MessageMetadata(producer_name="p", sequence_id=0, publish_time=1).SerializeToString()


class Reads:
    """Two entries at a time; without ledger 6 and some entries of the others."""

    def __init__(self, _slice: Slice) -> None:
        pass

    def entries(self, part: LedgerPart) -> Iterator[tuple[int, list[bytes]]]:
        if part.ledger_id == 6:
            raise DataLossError("no such ledger")
        for first in range(part.first, part.last + 1, 2):
            found: list[bytes] = []
            for at in range(first, min(first + 1, part.last) + 1):
                if at in (3, 4, 9):
                    if found:
                        yield first, found
                    raise EntryLossError(f"no such entry {at}")
                found.append(encode_payload(HEAD, b"%d:%d" % (part.ledger_id, at)))
            yield first, found

    def close(self) -> None:
        pass


PARTS = (LedgerPart(5, 2, 9), LedgerPart(6, 0, 9), LedgerPart(7, 0, 2))


def values(monkeypatch: pytest.MonkeyPatch, *, fails: bool) -> list[bytes]:
    monkeypatch.setattr(slice_reader, "_reads_of", Reads)
    wanted = Slice("t", -1, PARTS, settings=ReadSettings(fail_on_data_loss=fails))
    batches = read_slice(SCHEMA, wanted)
    return [value for batch in batches for value in batch.column(0).to_pylist()]


def test_entries_that_are_lost_take_no_others_along(monkeypatch: pytest.MonkeyPatch) -> None:
    assert values(monkeypatch, fails=False) == [
        b"5:2", b"5:5", b"5:6", b"5:7", b"5:8", b"7:0", b"7:1", b"7:2",
    ]  # fmt: skip


def test_a_lost_entry_is_data_loss(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(DataLossError, match=r"no such entry 3.*failOnDataLoss"):
        values(monkeypatch, fails=True)
