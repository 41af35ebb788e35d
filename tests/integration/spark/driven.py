"""A streaming query without Spark: the reader is called in the order in which Spark calls it.

Spark's own part (offset log, micro-batches, commits) is played by a few lines, so that what the
reader does over restarts, failures and growth is tested in moments; test_stream.py has the same
with Spark itself. Spark logs where a micro-batch ends, not where the first one begins: it asks for
that when it plans the batch, again when it runs it, and again after a restart.
"""

import json
import pickle
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, cast

from pyspark.sql.types import BinaryType, StringType, StructField, StructType

from magnetar.arrow.stored.column_names import TOPIC, VALUE
from magnetar.sdk.spark.partitions import slices_of
from magnetar.sdk.spark.stream_reader import StreamReader, stream_reader

SCHEMA = StructType([StructField(VALUE, BinaryType()), StructField(TOPIC, StringType())])


@dataclass
class Checkpoint:
    """What Spark keeps: planned offsets, and which batches are done."""

    planned: list[dict[str, Any]] = field(default_factory=list)
    done: int = 0


class DrivenQuery:
    """One run of a query; another run on the same checkpoint is a restart."""

    def __init__(
        self, options: Mapping[str, str], checkpoint: Checkpoint, schema: StructType = SCHEMA
    ) -> None:
        """`schema`: two columns, the second one `__topic`."""
        self._checkpoint = checkpoint
        self._reader = cast(StreamReader, stream_reader(options, schema))
        self.values: list[Any] = []
        self.topics: list[str] = []
        self.batch_sizes: list[int] = []
        self.tasks: list[list[list[str]]] = []
        """Of each micro-batch its tasks, of each task the topics."""
        self.on_step: Callable[[str], object] = lambda _: None
        """Called with the name of each call of the reader when it has returned."""

    def __enter__(self) -> "DrivenQuery":
        return self

    def __exit__(self, *_: object) -> None:
        self._reader.stop()

    def run_available(
        self, *, fails_in: int = -1, available_now: bool = False, commits: bool = True
    ) -> "DrivenQuery":
        """Until nothing is left. `fails_in`: the batch that is planned and not finished.
        `available_now`: by that trigger. Without `commits`, progress is tracked asynchronously, and
        nothing of it is logged yet."""
        known = self._checkpoint
        limit = self._reader.getDefaultReadLimit()
        if available_now:
            self._reader.prepareForTriggerAvailableNow()
        while True:
            if known.done == len(known.planned):
                start = known.planned[-1] if known.planned else self._begun()
                end = _logged(self._reader.latestOffset(start, limit))
                self.on_step("latestOffset")
                if end == start and known.planned:
                    return self
                known.planned.append(end)
                if known.done and commits:
                    # Spark tells of a finished batch when it builds the next one.
                    self._reader.commit(known.planned[known.done - 1])
                    self.on_step("commit")
            end = known.planned[known.done]
            if fails_in == known.done:
                return self
            start = known.planned[known.done - 1] if known.done else self._begun()
            self._read(start, end)
            known.done += 1

    def _begun(self) -> dict[str, Any]:
        found = _logged(self._reader.initialOffset())
        self.on_step("initialOffset")
        return found

    def _read(self, start: dict[str, Any], end: dict[str, Any]) -> None:
        # Executors have a copy of the reader, and of the slices.
        executor = cast(StreamReader, pickle.loads(pickle.dumps(self._reader)))
        count = len(self.values)
        planned = self._reader.partitions(start, end)
        self.on_step("partitions")
        self.tasks.append([[part.topic for part in slices_of(each)] for each in planned])
        for partition in planned:
            for batch in executor.read(pickle.loads(pickle.dumps(partition))):
                self.values += batch.column(0).to_pylist()
                self.topics += batch.column(1).to_pylist()
        self.batch_sizes.append(len(self.values) - count)


def _logged(offset: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(json.dumps(offset))
    return found
