"""A Spark session that reads topics: `python -m tests.bench.spark_load JSON`; prints JSON.

The argument has `what` (batch, stream, latency, beside), `options` of the source, `cores` of the
session, `processors` that the JVM and its Python workers are pinned to, and the limits of each
measurement. The JVM is warm before anything is measured: code that it has not compiled yet is
several times slower.
"""

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

_WARM_S = 20.0
_BATCHES = 12


def _session(directory: Path, cores: int) -> Any:
    from tests.bench.spark_plain_source import PlainSource
    from tests.integration.spark.support import make_session

    spark = make_session(
        f"local[{cores}]",
        directory,
        **{
            "spark.driver.memory": "1g",
            "spark.sql.execution.arrow.maxRecordsPerBatch": "10000",
            # Sessions of tests do without the better compiler, which users have.
            "spark.driver.extraJavaOptions": f"-Dderby.system.home={directory}",
        },
    )
    spark.dataSource.register(PlainSource)
    return spark


def _read_once(spark: Any, options: dict[str, str]) -> float:
    """Read everything, discard it on the executors, and return the seconds."""
    started = time.perf_counter()
    frame = spark.read.format("magnetar").options(**options).load()
    frame.write.format("noop").mode("overwrite").save()
    return time.perf_counter() - started


def _batch(spark: Any, work: dict[str, Any]) -> dict[str, Any]:
    warm_until = time.monotonic() + work.get("warm_s", _WARM_S)
    _read_once(spark, work["options"])
    while time.monotonic() < warm_until:
        _read_once(spark, work["options"])
    runs = [_read_once(spark, work["options"]) for _ in range(work.get("repeats", 3))]
    return {"seconds": statistics.median(runs), "runs": runs}


def _beside(spark: Any, work: dict[str, Any]) -> dict[str, Any]:
    """Read again and again until standard input ends. Print `begun` before the first measured
    read."""
    import threading

    _batch(spark, {**work, "repeats": 1})
    ended = threading.Event()

    def wait_for_end() -> None:
        sys.stdin.read()
        ended.set()

    threading.Thread(target=wait_for_end, daemon=True).start()
    sys.stdout.write("begun\n")
    sys.stdout.flush()
    rounds, started = 0, time.monotonic()
    while not ended.is_set():
        _read_once(spark, work["options"])
        rounds += 1
    return {"rounds": rounds, "seconds": time.monotonic() - started}


def _stream(spark: Any, work: dict[str, Any], directory: Path) -> dict[str, Any]:
    """Return the median time of a micro-batch; all have the same number of rows."""
    reader = spark.readStream.format(work["format"]).options(**work["options"])
    query = (
        reader.load()
        .writeStream.format("noop")
        .option("checkpointLocation", tempfile.mkdtemp(dir=directory))
        .trigger(processingTime="0 seconds")
        .start()
    )
    found: dict[int, int] = {}
    deadline = time.monotonic() + 120
    while len(found) < work["batches"] and time.monotonic() < deadline:
        for progress in query.recentProgress:
            if progress["numInputRows"] > 0:
                found[progress["batchId"]] = progress["durationMs"]["triggerExecution"]
        query.awaitTermination(0.2)
    query.stop()
    # The first micro-batches load classes.
    times = [found[batch] for batch in sorted(found)][len(found) // 3 :]
    return {"ms": statistics.median(times), "runs": times}


def _latency(spark: Any, work: dict[str, Any], directory: Path) -> dict[str, Any]:
    """Return the times from when each message was due until `foreachBatch` has its row."""
    latencies_s: list[float] = []
    batches = 0
    measured_from = time.time() + work["warm_s"]

    def take(frame: Any, _: int) -> None:
        nonlocal batches
        values = [row.value for row in frame.select("value").collect()]
        now = time.time()
        if now >= measured_from:
            batches += 1
            latencies_s.extend(now - int.from_bytes(each[:8], "big") / 1e9 for each in values)

    query = (
        spark.readStream.format("magnetar")
        .options(**work["options"])
        .load()
        .writeStream.foreachBatch(take)
        .option("checkpointLocation", tempfile.mkdtemp(dir=directory))
        .start()
    )
    seconds = work["warm_s"] + work["seconds"]
    ticking = [work["url"], work["topic"], str(work["rate"]), str(seconds)]
    subprocess.run(
        [sys.executable, "-m", "tests.bench.spark_ticker", *ticking],
        check=True,
        stdout=sys.stderr,
        timeout=10 * seconds,
    )
    query.processAllAvailable()
    query.stop()
    latencies_s.sort()
    return {
        "rows": len(latencies_s),
        "batches": batches,
        **{
            f"p{share}_ms": round(latencies_s[int(len(latencies_s) * share / 100)] * 1000, 1)
            for share in (50, 99)
        },
    }


def main() -> None:
    work = json.loads(sys.argv[1])
    if work.get("processors"):
        os.sched_setaffinity(0, set(work["processors"]))
    if work.get("niceness"):
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    # Spark prints a lot on standard output, which is reserved for the result.
    result_to = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    sys.stdout = result_to
    with tempfile.TemporaryDirectory() as folder:
        spark = _session(Path(folder), work.get("cores", 1))
        if work["what"] == "batch":
            result: Any = _batch(spark, work)
        elif work["what"] == "beside":
            result = _beside(spark, work)
        elif work["what"] == "latency":
            result = _latency(spark, work, Path(folder))
        else:
            result = [_stream(spark, each, Path(folder)) for each in work["streams"]]
        spark.stop()
    sys.stdout.write(json.dumps(result) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
