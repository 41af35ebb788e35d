"""A slice is a partition for Spark, and comes to its task as it was planned."""

import pickle

from pyspark.sql.datasource import InputPartition

from magnetar.arrow.stored.slices import Address, LedgerPart, ReadSettings, Slice
from magnetar.sdk.spark.partitions import partition_of, slices_of

SLICES = [
    Slice(
        f"t{number}",
        number,
        (LedgerPart(1, 2, 3),),
        before=(LedgerPart(0, 0, 9),),
        is_cut_off=True,
        addresses={"b": Address("h", 1)},
        skip_through_batch_index=4,
        stop_at_batch_index=5,
        settings=ReadSettings(mode="PERMISSIVE"),
    )
    for number in range(3)
]


def test_one_slice_or_several_come_as_they_were() -> None:
    for slices in (SLICES[:1], SLICES):
        partition = partition_of(slices)
        assert isinstance(partition, InputPartition), "Spark refuses anything else"
        copy = pickle.loads(pickle.dumps(partition))
        assert [vars(each) for each in slices_of(copy)] == [vars(each) for each in slices]


def test_a_partition_of_one_slice_is_that_slice() -> None:
    assert isinstance(partition_of(SLICES[:1]), Slice)
