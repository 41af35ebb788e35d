"""A task of several slices: one row behind the other, in few batches."""

from collections.abc import Iterator

import pytest
from pyspark.sql.types import BinaryType, StructField, StructType

from magnetar.arrow.stored import slice_reader
from magnetar.arrow.stored.slices import LedgerPart, Slice
from magnetar.sdk.spark.tasks import read_slices
from magnetar.sdk.wire.frames import encode_payload
from magnetar.sdk.wire.pulsar_pb2 import MessageMetadata

SCHEMA = StructType([StructField("value", BinaryType())])
HEAD = MessageMetadata(producer_name="p", sequence_id=0, publish_time=1).SerializeToString()


class Reads:
    """Ledgers that are all there."""

    def entries(self, part: LedgerPart) -> Iterator[tuple[int, list[bytes]]]:
        for at in range(part.first, part.last + 1):
            yield at, [encode_payload(HEAD, b"%d" % at)]

    def first_held(self, part: LedgerPart) -> int:
        return part.first

    def close(self) -> None:
        pass


def test_slices_of_one_task_come_in_their_order_and_in_few_batches(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Over the connections of one another, which are closed with the last one."""
    made: list[tuple[str, object]] = []

    def reads_of(wanted: Slice, before: object = None) -> Reads:
        made.append((wanted.topic, before))
        return shared

    shared = Reads()
    monkeypatch.setattr(slice_reader, "_reads_of", reads_of)
    slices = [Slice(f"t-{number}", -1, (LedgerPart(number, 0, 9),)) for number in range(20)]
    batches = list(read_slices(SCHEMA, slices))
    assert [batch.num_rows for batch in batches] == [200]
    assert made == [("t-0", None), *((f"t-{number}", shared) for number in range(1, 20))]
