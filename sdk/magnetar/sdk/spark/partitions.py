"""Slices as the partitions that Spark pickles and gives to its tasks."""

from collections.abc import Sequence

from pyspark.sql.datasource import InputPartition

from magnetar.arrow.stored.slices import Slice


class SlicePartition(Slice, InputPartition):
    """One slice for a task."""


class JoinedPartition(InputPartition):
    """Several slices for a task: small ones that are not worth a task each."""

    def __init__(self, slices: tuple[Slice, ...]) -> None:
        """`slices` are read one after the other."""
        self.slices = slices


def partition_of(slices: Sequence[Slice]) -> InputPartition:
    """Return the partition of a task, which reads these slices one after the other."""
    if len(slices) == 1:
        return SlicePartition(**vars(slices[0]))
    return JoinedPartition(tuple(slices))


def slices_of(partition: InputPartition) -> tuple[Slice, ...]:
    """Return the slices of a task."""
    if isinstance(partition, JoinedPartition):
        return partition.slices
    assert isinstance(partition, SlicePartition)
    return (partition,)
