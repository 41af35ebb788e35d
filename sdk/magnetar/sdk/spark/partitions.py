"""Slices as the partitions that Spark pickles and hands to its tasks."""

from collections.abc import Sequence

from pyspark.sql.datasource import InputPartition

from magnetar.arrow.stored.slices import Slice


class SlicePartition(Slice, InputPartition):
    """One slice for a task."""


class JoinedPartition(InputPartition):
    """Several slices for a task: small ones, each of which would not be worth a task."""

    def __init__(self, slices: tuple[Slice, ...]) -> None:
        """`slices`: read one behind the other."""
        self.slices = slices


def partition_of(slices: Sequence[Slice]) -> InputPartition:
    """What a task reads, one slice behind the other."""
    if len(slices) == 1:
        return SlicePartition(**vars(slices[0]))
    return JoinedPartition(tuple(slices))


def slices_of(partition: InputPartition) -> tuple[Slice, ...]:
    """What a task reads."""
    if isinstance(partition, JoinedPartition):
        return partition.slices
    assert isinstance(partition, SlicePartition)
    return (partition,)
