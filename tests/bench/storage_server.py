"""A bookie process that can be asked how it feels: `python -m tests.bench.storage_server`.

It is what `magnetar bookie` runs, with a probe beside it: every millisecond a callback of the event
loop says how late it is. Who connects to the probe's port gets one line of JSON, what was seen
since the last one asked:

- `lateness_ms`: percentiles of the time for which the loop was not to be had, as one sees it who
  comes at a random moment: a loop that is held for 50 ms counts as 50 moments, 50 ms to 1 ms late;
  `max_cpu`: what the loop's own thread computed in the longest of these times. The rest of it the
  thread waited, for the processor or for the interpreter's lock; `own_p999`, `own_max`: the same
  without the time for which this thread was ready and had no processor, which on a machine that
  does other things is theirs;
- `latest_ms`: the highest hundredth of these moments;
- `metrics`: the bookie's counters and gauges since the start;
- `resident_bytes`, `written_bytes`, `cpu_s`: of the process, since its start.

After an orderly end the same is in the file of `--final`, with `stop_s`, what the end took: by then
everything is in the entry logs.

usage: python -m tests.bench.storage_server --metadata URL --data DIR --final FILE
           [--set NAME=VALUE ...]
"""

import argparse
import asyncio
import json
import logging
import os
import sys
import time
from array import array
from pathlib import Path

import structlog

from magnetar.bookie.metrics import BookieMetrics
from magnetar.deploy.options import Listen, Sources
from magnetar.deploy.process import run_server
from magnetar.deploy.servers import BookieServer, BookieServerSettings
from magnetar.ledger.metric_fields import Histogram, metrics_in

_INTERVAL_S = 0.001
_HOST = "127.0.0.1"


class Probe:
    """Watches the loop it is started on."""

    def __init__(self) -> None:
        self._lateness_s = array("d")
        self._due_s = 0.0
        self._cpu_s = 0.0
        self._worst_s = self._worst_cpu_s = 0.0
        self._own_lateness_s = array("d")
        self.latest_ms: list[float] = []
        self._queued_s = 0.0
        # Of the thread that makes it: the loop's.
        self._schedstat = os.open("/proc/thread-self/schedstat", os.O_RDONLY)

    def start(self) -> None:
        # The loop's own time is that of the last time it looked for events, in milliseconds.
        self._due_s = time.monotonic() + _INTERVAL_S
        loop = asyncio.get_running_loop()
        loop.call_later(_INTERVAL_S, self._strike, loop)

    def take(self) -> dict[str, float]:
        """Percentiles in milliseconds since the last call; `latest_ms` has the highest of a hundred
        of these, so that several runs can be taken together."""
        seen, self._lateness_s = sorted(self._lateness_s), array("d")
        own, self._own_lateness_s = sorted(self._own_lateness_s), array("d")
        self.latest_ms = [round(each * 1000, 3) for each in seen[-max(1, len(seen) // 100) :]]
        if not seen:
            return {}
        last = len(seen) - 1

        def at(share: float) -> float:
            return round(seen[min(last, int(len(seen) * share))] * 1000, 3)

        worst_cpu_s = self._worst_cpu_s
        self._worst_s = self._worst_cpu_s = 0.0
        return {
            "p50": at(0.5),
            "p99": at(0.99),
            "p999": at(0.999),
            "max": at(1),
            "own_p999": round(own[min(len(own) - 1, int(len(own) * 0.999))] * 1000, 3),
            "own_max": round(own[-1] * 1000, 3),
            "max_cpu": round(worst_cpu_s * 1000, 3),
            "of": len(seen),
        }

    def _strike(self, loop: asyncio.AbstractEventLoop) -> None:
        now_s = time.monotonic()
        late_s = max(0.0, now_s - self._due_s)
        cpu_s = time.thread_time()
        if late_s > self._worst_s:
            self._worst_s, self._worst_cpu_s = late_s, cpu_s - self._cpu_s
        self._cpu_s = cpu_s
        queued_s = self._queued()
        own_late_s = max(0.0, late_s - (queued_s - self._queued_s))
        self._queued_s = queued_s
        _note(late_s, self._lateness_s)
        _note(own_late_s, self._own_lateness_s)
        self._due_s = now_s + _INTERVAL_S
        loop.call_later(_INTERVAL_S, self._strike, loop)

    def _queued(self) -> float:
        """Seconds for which the thread has waited for a processor."""
        return int(os.pread(self._schedstat, 100, 0).split()[1]) / 1e9


def _note(late_s: float, noted_s: "array[float]") -> None:
    """Strokes that were due while the loop was held would have been late as well."""
    while late_s >= 0.0:
        noted_s.append(late_s)
        late_s -= _INTERVAL_S


class ProbedBookie(BookieServer):
    """A bookie with a probe."""

    def __init__(self, settings: BookieServerSettings, sources: Sources, final: Path) -> None:
        super().__init__(settings, sources)
        self._final = final
        self._probe = Probe()
        self._probe_port = 0

    async def start(self) -> None:
        await super().start()
        server = await asyncio.start_server(self._answer, _HOST, 0)
        self._probe_port = server.sockets[0].getsockname()[1]
        self._probe.start()

    def addresses(self) -> list[str]:
        return [*super().addresses(), f"probe://{_HOST}:{self._probe_port}"]

    async def stop(self) -> None:
        loop = asyncio.get_running_loop()
        started_s = loop.time()
        await super().stop()
        answer = {**self._look(), "stop_s": loop.time() - started_s}
        self._final.write_text(json.dumps(answer))

    async def _answer(self, _: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(json.dumps(self._look()).encode() + b"\n")
        await writer.drain()
        writer.close()

    def _look(self) -> dict[str, object]:
        return {
            "lateness_ms": self._probe.take(),
            "latest_ms": self._probe.latest_ms,
            "metrics": _values(self.bookie.metrics),
            "resident_bytes": _resident_bytes(),
            "written_bytes": _written_bytes(),
            "cpu_s": sum(os.times()[:2]),
        }


def _values(metrics: BookieMetrics) -> dict[str, object]:
    for refresh in metrics.before_export:
        refresh()
    return {
        each.name: {"count": each.value.count, "sum": each.value.total}
        if isinstance(each.value, Histogram)
        else each.value
        for each in metrics_in(metrics)
    }


def _resident_bytes() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def _written_bytes() -> int:
    """What this process has written, to files and, a little, to sockets.

    Not the kernel's `write_bytes`: a small write into a file that is written anew makes a whole
    large folio of the page cache dirty, and counts as that.
    """
    lines = Path("/proc/self/io").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("wchar"))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--metadata", required=True)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--final", type=Path, required=True)
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE")
    arguments = parser.parse_args()
    structlog.configure(
        wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
    )
    given = dict(each.split("=", 1) for each in arguments.set)
    settings = BookieServerSettings(
        metadata_url=arguments.metadata,
        data=arguments.data,
        listen=Listen(_HOST),
        port=0,
        bookie_id="bench",
    )
    environment = {f"MAGNETAR_BOOKIE_{name.upper()}": value for name, value in given.items()}
    sources = Sources(environment={**os.environ, **environment})
    run_server(lambda: ProbedBookie(settings, sources, arguments.final))


if __name__ == "__main__":
    main()
