"""A streaming query into a topic whose tasks fail, as a process that can be killed.

usage: python sink_driver.py SERVICE_URL ADMIN_URL TOPIC DIRECTORY

Lines of the text files in DIRECTORY/input, a file in each micro-batch, in two tasks. The first
attempt of each task fails in the midst of its rows. Ends when all files are written.
"""

import sys
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
from pyspark import TaskContext

from tests.integration.spark.support import make_session


def fail_first_attempts(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    context = TaskContext.get()
    assert context is not None
    for number, batch in enumerate(batches):
        yield batch
        if context.attemptNumber() == 0 and number == 1:
            raise RuntimeError("the first attempt fails")


def main(service_url: str, admin_url: str, topic: str, directory: Path) -> None:
    # Four attempts for each task, and Arrow batches so small that several make a task.
    settings = {"spark__sql__execution__arrow__maxRecordsPerBatch": "500"}
    spark = make_session("local[2,4]", directory, **settings)
    spark.sparkContext.setLogLevel("OFF")
    rows = spark.readStream.option("maxFilesPerTrigger", 1).text(str(directory / "input"))
    rows = rows.repartition(2, "value").mapInArrow(fail_first_attempts, rows.schema)
    query = (
        rows.writeStream.format("magnetar")
        .option("service.url", service_url)
        .option("admin.url", admin_url)
        .option("topic", topic)
        .option("batchingMaxMessages", "100")
        .option("sortBy", "value")
        .option("checkpointLocation", str(directory / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3], Path(sys.argv[4]))
