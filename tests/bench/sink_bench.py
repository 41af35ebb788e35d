"""The Spark sink by itself: `python -m tests.bench.sink_bench`.

Runs a task's work on Arrow batches of 10 000 rows, without Spark around it, against a standalone.
Prints rows per second of wall time, and per second of this process's processor time. The latter is
the rate per core, which other work on the machine does not change.
"""

import json
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
from pyspark.sql.types import DoubleType, LongType, StringType, StructField, StructType

from magnetar.sdk.spark.sink.lane import TaskIdentity
from magnetar.sdk.spark.sink.options import SinkOptions
from magnetar.sdk.spark.sink.rows import plan_rows
from magnetar.sdk.spark.sink.topics import ReadyTopic
from magnetar.sdk.spark.sink.writer import SinkPlan, write_task
from tests.standalone import Standalone

_BATCHES = 100
_ROWS = 10_000

_VALUE = StructType([StructField("value", StringType())])
_KEYED = StructType([StructField("value", StringType()), StructField("__key", StringType())])
_FIELDS = StructType(
    [
        StructField("id", LongType()),
        StructField("ratio", DoubleType()),
        StructField("name", StringType()),
        StructField("city", StringType()),
        StructField("delay", LongType()),
    ]
)


def _columns(schema: StructType) -> pa.RecordBatch:
    made = {
        "value": [f"{number:0100d}" for number in range(_ROWS)],
        "__key": [f"key {number % 100}" for number in range(_ROWS)],
        "id": list(range(_ROWS)),
        "ratio": [number / 7 for number in range(_ROWS)],
        "name": [f"name {number}" for number in range(_ROWS)],
        "city": ["New York City"] * _ROWS,
        "delay": [number % 90 for number in range(_ROWS)],
    }
    return pa.RecordBatch.from_pydict({name: made[name] for name in schema.fieldNames()})


def _measure(server: Standalone, name: str, types: StructType, **options: str) -> dict[str, float]:
    topic = f"persistent://public/default/{name}"
    given = {"service.url": server.url, "topic": topic, "deduplication": "off", **options}
    chosen = SinkOptions.read(given)
    plan = SinkPlan(chosen, plan_rows(types, chosen), ReadyTopic(topic, 0))
    batch = _columns(types)

    def batches() -> Iterator[pa.RecordBatch]:
        for _ in range(_BATCHES):
            yield batch

    wall_s, cpu_s = time.perf_counter(), time.process_time()
    written = write_task(plan, TaskIdentity(name, 0, 0), batches())
    wall_s, cpu_s = time.perf_counter() - wall_s, time.process_time() - cpu_s
    return {
        "rows_per_s": round(written.rows / wall_s),
        "rows_per_core_s": round(written.rows / cpu_s),
    }


def main() -> None:
    with (
        tempfile.TemporaryDirectory(prefix="magnetar-sink-bench-") as directory,
        Standalone(Path(directory) / "data") as server,
    ):
        found = {
            "value_100b": _measure(server, "value", _VALUE),
            "value_100b_key": _measure(server, "key", _KEYED),
            "value_100b_lz4": _measure(server, "lz4", _VALUE, compressionType="lz4"),
            "json_5_fields": _measure(server, "json", _FIELDS, schema="json"),
            "avro_5_fields": _measure(server, "avro", _FIELDS, schema="avro"),
            "unbatched_100b": _measure(server, "single", _VALUE, batchingEnabled="false"),
        }
    print(json.dumps(found))


if __name__ == "__main__":
    main()
