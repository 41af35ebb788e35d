"""A bookie process with a probe: `python -m tests.bench.storage_server`.

It runs the code of `magnetar bookie`. Every millisecond a callback of the event loop records how
late it is. Each connection to the probe's port gets one line of JSON with what was seen since the
last connection:

- `lateness_ms`, `latest_ms`, `latest_outside_ms`, `held`: see loop_probe.py and loop_steps.py;
- `metrics`: the bookie's counters and gauges since the start;
- `resident_bytes`, `written_bytes`, `cpu_s`: of the process, since its start.

After an orderly stop the file of `--final` has the same values, and `stop_s`, the duration of the
stop: by then everything is in the entry logs.

usage: python -m tests.bench.storage_server --metadata URL --data DIR --final FILE
           [--set NAME=VALUE ...]
"""

import argparse
import asyncio
import json
import logging
import os
import sys
from dataclasses import asdict
from pathlib import Path

import structlog

from magnetar.bookie.journaling.journal import Journal
from magnetar.bookie.metrics import BookieMetrics
from magnetar.bookie.requests.request_handler import RequestHandler
from magnetar.bookie.server import BookieConnection
from magnetar.bookie.settings import BookieSettings
from magnetar.deploy.bookie_server import BookieServer, bookie_settings
from magnetar.deploy.options import Listen, Sources
from magnetar.deploy.process import run_server
from magnetar.ledger.metric_fields import Histogram, metrics_in
from tests.bench.loop_probe import Probe
from tests.bench.loop_steps import LoopSteps

_HOST = "127.0.0.1"


class ProbedBookie(BookieServer):
    """A bookie with a probe."""

    def __init__(
        self, settings: BookieSettings, sources: Sources, *, metadata_url: str, final: Path
    ) -> None:
        super().__init__(settings, sources, metadata_url=metadata_url)
        self._final = final
        steps = LoopSteps()
        steps.watch(BookieConnection, ["data_received"], lambda _, data: len(data))
        steps.watch(BookieConnection, ["go_on", "try_again", "connection_lost"])
        steps.watch(Journal, ["_committed"])
        steps.watch(RequestHandler, ["on_flushed"])
        self._probe = Probe(steps)
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
            **asdict(self._probe.take()),
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
    """Return the bytes that this process has written, to files and, a little, to sockets.

    The kernel's `write_bytes` is not used: a small write into a file that is rewritten dirties a
    whole large folio of the page cache, and counts as that.
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
    environment = {f"MAGNETAR_BOOKIE_{name.upper()}": value for name, value in given.items()}
    sources = Sources(environment={**os.environ, **environment})
    settings = bookie_settings(
        sources, data=arguments.data, listen=Listen(_HOST), port=0, bookie_id="bench"
    )
    run_server(
        lambda: ProbedBookie(
            settings, sources, metadata_url=arguments.metadata, final=arguments.final
        )
    )


if __name__ == "__main__":
    main()
