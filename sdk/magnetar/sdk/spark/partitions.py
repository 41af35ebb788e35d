"""Slices as the partitions that Spark pickles and hands to its tasks."""

from collections.abc import Sequence

from pyspark.sql.datasource import InputPartition

from magnetar.sdk.spark.slices import JoinedSlices, Slice


class SlicePartition(Slice, InputPartition):
    """One slice for a task."""


class JoinedPartition(JoinedSlices, InputPartition):
    """Several slices for a task."""


def partition_of(slices: Sequence[Slice]) -> InputPartition:
    """What a task reads, one slice behind the other."""
    if len(slices) == 1:
        return SlicePartition(**vars(slices[0]))
    return JoinedPartition(tuple(slices))
