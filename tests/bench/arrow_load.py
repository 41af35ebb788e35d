"""Reads a topic by `magnetar.arrow` and discards it: `python -m tests.bench.arrow_load JSON`.

The argument has `arguments` of `read`, `topic`, `repeats`, and `processors` that the process and
its workers are pinned to. Prints JSON. The first read warms caches and is not reported. Rows per
second of processor time, of this process and its workers, are the rate that a core of its own would
give.
"""

import json
import os
import resource
import statistics
import sys
import threading
import time
from typing import Any

from magnetar.arrow import read

_KILO = 1024


def main() -> None:
    work: dict[str, Any] = json.loads(sys.argv[1])
    if work.get("processors"):
        os.sched_setaffinity(0, work["processors"])
    _read_once(work)
    before_s = _cpu_s()
    runs = [_read_once(work) for _ in range(work["repeats"])]
    cpu_s = _cpu_s() - before_s
    seconds = statistics.median(each[1] for each in runs)
    found = {
        "rows": runs[0][0],
        "seconds": seconds,
        "rows_per_s": runs[0][0] / seconds,
        "rows_per_cpu_s": sum(rows for rows, _ in runs) / cpu_s,
        "runs": [round(rows / took_s) for rows, took_s in runs],
        "resident_peak_bytes": _resident_peak_bytes(),
    }
    print(json.dumps(found))


def _read_once(work: dict[str, Any]) -> tuple[int, float]:
    """Read the topic once; return rows and seconds."""
    started_s = time.perf_counter()
    rows = sum(batch.num_rows for batch in read(work["topic"], **work["arguments"]))
    return rows, time.perf_counter() - started_s


def _cpu_s() -> float:
    """Return the processor time so far, with ended workers included; those of earlier reads have
    ended."""
    for each in threading.enumerate():
        if each.name.startswith("arrow-"):
            each.join()
    workers = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + workers.ru_utime + workers.ru_stime


def _resident_peak_bytes() -> int:
    """Return the peak memory of this process; its workers are not included."""
    with open("/proc/self/status") as status:
        found = next(line for line in status if line.startswith("VmHWM:"))
    return int(found.split()[1]) * _KILO


if __name__ == "__main__":
    main()
