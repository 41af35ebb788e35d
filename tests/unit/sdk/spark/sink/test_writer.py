"""Under which names the tasks of queries write."""

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import StringType, StructField, StructType

from magnetar.sdk.spark.errors import OptionError
from magnetar.sdk.spark.sink import writer
from magnetar.sdk.spark.sink.lane import TaskIdentity
from magnetar.sdk.spark.sink.options import SinkOptions
from magnetar.sdk.spark.sink.rows import plan_rows
from magnetar.sdk.spark.sink.writer import SinkPlan, Written

SCHEMA = StructType([StructField("value", StringType())])
GIVEN = {"service.url": "pulsar://h:1", "admin.url": "http://h:1", "topic": "t"}


class Context:
    """What Spark tells a task of a micro-batch."""

    def __init__(self, query: str, batch_id: int) -> None:
        self._properties = {
            "streaming.sql.batchId": str(batch_id),
            "sql.streaming.queryId": query,
        }

    def getLocalProperty(self, name: str) -> str:
        return self._properties[name]

    def partitionId(self) -> int:
        return 3


def names(monkeypatch: pytest.MonkeyPatch, runs: list[Context], **options: str) -> list[str]:
    """The producers' names in some micro-batches."""
    found: list[str] = []

    def write_task(_plan: SinkPlan, task: TaskIdentity, _rows: Iterator[pa.RecordBatch]) -> Written:
        found.append(task.producer_name)
        return Written(0, 0)

    chosen = SinkOptions.read({**GIVEN, **options})
    stream = writer.StreamWriter(SinkPlan(chosen, plan_rows(SCHEMA, chosen), None))
    monkeypatch.setattr(writer, "write_task", write_task)
    for each in runs:
        context: Any = each
        monkeypatch.setattr(writer, "_context", lambda context=context: context)
        stream.write(iter(()))
    return found


@pytest.mark.parametrize("options", [{}, {"producerName": "mine"}], ids=str)
def test_a_task_has_one_name_in_all_batches_of_a_query_and_another_in_the_next_query(
    monkeypatch: pytest.MonkeyPatch, options: dict[str, str]
) -> None:
    """A new checkpoint is a new query, whose batches are counted from 0 again: under the old name
    they would be taken for stored, and nothing of them would be written."""
    runs = [Context("a", 0), Context("a", 1), Context("b", 0)]
    first, second, other = names(monkeypatch, runs, **options)
    assert first == second != other
    assert first == f"magnetar-spark-{'mine-' if options else ''}a-3"


@pytest.mark.parametrize(
    "topic", ["topic://public/default/t", "segment://public/default/t/0000-ffff-0"]
)
def test_a_scalable_topic_is_not_written_to(topic: str) -> None:
    with pytest.raises(OptionError, match="is a scalable topic, to which the sink does not write"):
        SinkOptions.read({**GIVEN, "topic": topic})


def test_the_sink_makes_no_batches_that_consumers_refuse() -> None:
    SinkOptions.read({**GIVEN, "batchingMaxMessages": "65536"})
    with pytest.raises(OptionError, match="a number from 1 to 65536"):
        SinkOptions.read({**GIVEN, "batchingMaxMessages": "65537"})
