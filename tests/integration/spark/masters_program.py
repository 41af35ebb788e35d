"""Reads and writes topics on another master than local; prints what came. See test_masters.py.

usage: python -m tests.integration.spark.masters_program MASTER DIRECTORY OPTIONS TOPICS

OPTIONS are those of the source. TOPICS, two names with a comma between them, get the values of the
topic that is read, by a batch and by a streaming query.
"""

import json
import os
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

import pyarrow as pa
from pyspark.sql import DataFrame

from tests.integration.spark.streams import TIMEOUT_S
from tests.integration.spark.support import load, make_session


def _places(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Where a task runs, and how many rows it got: each executor has a directory of its own."""
    rows = sum(batch.num_rows for batch in batches)
    yield pa.RecordBatch.from_pydict({"place": [os.getcwd()], "rows": [rows]})


def _read(frame: DataFrame) -> dict[str, int]:
    found = frame.select("value").mapInArrow(_places, "place string, rows long").collect()
    return {
        "rows": sum(row["rows"] for row in found),
        "executors": len({row["place"] for row in found}),
    }


def main() -> None:
    master, directory, options = sys.argv[1], Path(sys.argv[2]), json.loads(sys.argv[3])
    batch_topic, stream_topic = sys.argv[4].split(",")
    spark = make_session(
        master,
        directory,
        **{
            "spark.executor.memory": "512m",
            "spark.executor.extraJavaOptions": "-XX:TieredStopAtLevel=1",
            "spark.executorEnv.PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
            # Nothing begins before both executors are there: each gets tasks.
            "spark.cores.max": "2",
            "spark.scheduler.minRegisteredResourcesRatio": "1.0",
            "spark.scheduler.maxRegisteredResourcesWaitingTime": "300s",
        },
    )
    target = {name: options[name] for name in ("service.url", "admin.url")}
    found = _read(load(spark, options))
    batch = load(spark, options).select("value").write.format("magnetar").mode("append")
    batch.options(**target, topic=batch_topic).save()
    stream = spark.readStream.format("magnetar").options(**options, startingOffsets="earliest")
    writer = stream.load().select("value").writeStream.format("magnetar")
    query = (
        writer.options(**target, topic=stream_topic)
        .option("checkpointLocation", str(directory / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(TIMEOUT_S), f"the query did not end within {TIMEOUT_S} s"
    spark.stop()
    sys.stdout.write("\n" + json.dumps(found) + "\n")


if __name__ == "__main__":
    main()
