"""Streaming queries of the tests: run until what is there was read, and say what came."""

import itertools
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession

TIMEOUT_S = 180
_numbers = itertools.count()


class Collected:
    """The values that a query gave, by micro-batch; a batch that is run again replaces itself.

    `fails_in` makes the sink fail in that micro-batch, before it has taken anything.
    """

    def __init__(self) -> None:
        self.batches: dict[int, list[bytes]] = {}
        self.topics: set[str] = set()
        self.fails_in = -1
        self._grown = threading.Condition()

    def take(self, frame: DataFrame, batch_id: int) -> None:
        rows = frame.select("value", "__topic").collect()
        if batch_id == self.fails_in:
            raise RuntimeError("the sink was told to fail")
        with self._grown:
            self.batches[batch_id] = [bytes(row[0]) for row in rows]
            self.topics.update(row[1] for row in rows)
            self._grown.notify_all()

    @property
    def values(self) -> list[bytes]:
        return [value for batch in sorted(self.batches) for value in self.batches[batch]]

    def wait_for(self, count: int) -> None:
        """Until so many values have come."""
        with self._grown:
            assert self._grown.wait_for(lambda: len(self.values) >= count, TIMEOUT_S), (
                f"{len(self.values)} of {count} values came within {TIMEOUT_S} s"
            )


def start(
    spark: SparkSession,
    options: Mapping[str, str],
    checkpoint: Path,
    collected: Collected,
    *,
    available_now: bool = True,
) -> Any:
    """A query into `collected`; without `available_now` it goes on until it is stopped."""
    writer = (
        spark.readStream.format("magnetar")
        .options(**options)
        .load()
        .writeStream.foreachBatch(collected.take)
        .option("checkpointLocation", str(checkpoint))
    )
    trigger = {"availableNow": True} if available_now else {"processingTime": "0 seconds"}
    return writer.trigger(**trigger).start()


def run(
    spark: SparkSession,
    options: Mapping[str, str],
    checkpoint: Path,
    collected: Collected | None = None,
) -> Collected:
    """Read what is available now.

    Raises:
        StreamingQueryException: the query failed.
    """
    collected = collected or Collected()
    query = start(spark, options, checkpoint, collected)
    try:
        assert query.awaitTermination(TIMEOUT_S), f"the query did not end within {TIMEOUT_S} s"
    finally:
        query.stop()
    return collected
