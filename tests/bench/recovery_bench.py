"""A bookie is lost for good: speed of re-replication, and its cost for publishing.

Some ledgers are written first. Then a producer publishes on the same bookies; the rate before the
loss is compared with the rate while copies are made. Copied bytes are those that the workers count;
the time is from the first copy until the first ledgers are whole. The ledgers published before the
loss come after that, when they are closed; the JSON says how long all of it took.

There are two publishers, each with both figures, the speed of copies and the rate of publishing:

- *Saturated*: 1 KB unbatched, 1000 in flight, as fast as receipts come. It takes both cores for
  itself, so every copy is made at its expense: at 8 ms of processor time per megabyte, 100 MB/s
  are 0.8 of two cores, and 0.7 of the rate cannot be left before a megabyte costs 6 ms. It stays in
  the report, with the same targets, as the measure of the cost of copying.
- *Batched*: 20 000 messages of 1 KB a second, the load that docs/operations/sizing.md plans with,
  in batches of 128, which is what the official clients' default of 128 KB makes of such messages.
  It leaves room, as a cluster should that can lose a bookie. These figures are the verdict.
"""

import os
import re
import shutil
import signal
import statistics
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import NamedTuple

import uvloop

from tests.bench.copy_bench import fill
from tests.bench.ledger_probe import open_client
from tests.bench.report import Effort, Figure, Report
from tests.http_calls import call
from tests.processes import ROOT, magnetar_command, magnetar_environment
from tests.real_cluster import RealCluster

_ENTRY_BYTES = 100_000
_MESSAGE_BYTES = 1024
_LEDGERS = 8
_WARM_UP_S = 3.0
_SAMPLE_S = 0.2
_TIMEOUT_S = 300.0
_COPIED = "magnetar_autorecovery_worker_bytes_copied_total"
_PUBLISHED = "pulsar_in_messages_total"
_ENVIRONMENT = {
    "MAGNETAR_METADATA_SESSION_TIMEOUT_MS": "4000",
    "MAGNETAR_AUDITOR_SETTLE_S": "1",
    "MAGNETAR_WORKER_OPEN_LEDGER_GRACE_S": "5",
}
"""Short timeouts: nobody waits for the bookie to come back."""


@dataclass(slots=True)
class _Samples:
    """Rows of time, messages published by then, and bytes copied by then."""

    rows: list[tuple[float, float, float]] = field(default_factory=list)

    def copying(self) -> list[tuple[float, float, float]]:
        """Return the rows from the last one before the first copy to the first one with all
        copies."""
        rows = self.rows
        start = next((at for at, row in enumerate(rows) if row[2] > rows[0][2]), len(rows) - 1)
        end = next(at for at, row in enumerate(rows) if row[2] == rows[-1][2])
        return rows[max(0, start - 1) : end + 1]

    @staticmethod
    def rate(rows: list[tuple[float, float, float]], column: int) -> float:
        """Return the rate per second of a column."""
        if len(rows) < 2:
            return 0.0
        (first, last) = rows[0], rows[-1]
        return (last[column] - first[column]) / (last[0] - first[0])


class _Publisher(NamedTuple):
    """A load, and the arguments of `perf produce` for it."""

    name: str
    arguments: tuple[str, ...]


_PUBLISHERS = (
    _Publisher("1 KB unbatched, saturated", ("--in-flight", "1000")),
    _Publisher("1 KB batched, 20,000/s", ("--batch", "128", "--rate", "20000")),
)


class _Loss(NamedTuple):
    """Measured effect of one loss of a bookie."""

    copy_mb_per_s: float
    published_before: float
    """Messages per second."""
    published_meanwhile: float
    details: dict[str, float]

    @property
    def share(self) -> float:
        return self.published_meanwhile / self.published_before if self.published_before else 0.0


class RecoveryBench:
    """Measures recovery; its figures go to the report."""

    def __init__(self, report: Report, effort: Effort) -> None:
        self._report = report
        self._effort = effort

    def recovery(self) -> None:
        """Lose one bookie and its disk under each of the publishers."""
        for publisher in _PUBLISHERS:
            self._add(publisher, [self._lose(publisher) for _ in range(self._effort.repeats)])

    def _lose(self, publisher: _Publisher) -> _Loss:
        is_quick = self._effort.repeats == 1
        ledger_mb, before_s = (16, 4.0) if is_quick else (128, 10.0)
        directory = self._report.directory / "recovery"
        with RealCluster(
            directory,
            brokers=1,
            bookies=4,
            autorecovery=1,
            quorum="3,3,2",
            environment=_ENVIRONMENT,
        ) as cluster:
            ledger_ids = uvloop.run(_write(cluster.metadata_url, ledger_mb=ledger_mb))
            with _publishing(cluster, publisher):
                _pass_time(_WARM_UP_S)
                before = _sample(cluster, lambda: False, for_s=before_s)
                lost = "bookie-1"
                cluster.kill(lost)
                shutil.rmtree(cluster.directory / lost)
                loss_s = time.monotonic()
                during = _sample(
                    cluster, lambda: _is_free_of(cluster.metadata_url, lost, ledger_ids)
                )
                if not is_quick:  # ledgers published before the loss, too
                    _sample(cluster, lambda: _is_free_of(cluster.metadata_url, lost))
                whole_s = time.monotonic()
        shutil.rmtree(directory)
        copying = during.copying()
        copied_mb = (copying[-1][2] - copying[0][2]) / 1e6
        return _Loss(
            copy_mb_per_s=_Samples.rate(copying, 2) / 1e6,
            published_before=_Samples.rate(before.rows, 1),
            published_meanwhile=_Samples.rate(copying, 1),
            details={
                "copied_mb": round(copied_mb, 1),
                "copying_s": round(copying[-1][0] - copying[0][0], 1),
                "loss_to_first_copy_s": round(copying[0][0] - loss_s, 1),
                "loss_to_whole_s": round(whole_s - loss_s, 1),
            },
        )

    def _add(self, publisher: _Publisher, losses: Sequence[_Loss]) -> None:
        copy_rates = [round(each.copy_mb_per_s, 1) for each in losses]
        copy_rate = statistics.median(copy_rates)
        self._report.add(
            Figure(
                name=f"re-replication beside {publisher.name}",
                unit="MB/s",
                value=copy_rate,
                target=">= 100",
                met=copy_rate >= 100,
                runs=copy_rates,
                details={"each": [each.details for each in losses]},
            )
        )
        share = statistics.median(each.share for each in losses)
        self._report.add(
            Figure(
                name=f"publishing meanwhile, {publisher.name}",
                unit="msg/s",
                value=round(statistics.median(each.published_meanwhile for each in losses)),
                target=">= 0.7 x before",
                met=share >= 0.7,
                ratio=round(share, 2),
                beside="before",
                beside_value=round(statistics.median(each.published_before for each in losses)),
                runs=[round(each.share, 2) for each in losses],
            )
        )


async def _write(metadata_url: str, *, ledger_mb: int) -> list[int]:
    """Write the ledgers that exist when the bookie is lost."""
    async with open_client(metadata_url) as client:
        entries = ledger_mb * (1 << 20) // _ENTRY_BYTES
        return await fill(client, ledgers=_LEDGERS, entries=entries, entry_bytes=_ENTRY_BYTES)


@contextmanager
def _publishing(cluster: RealCluster, publisher: _Publisher) -> Iterator[None]:
    """Publish from another process while the block runs."""
    process = subprocess.Popen(
        magnetar_command(
            *("perf", "produce", "recovery", "--url", cluster.service_url),
            *("--messages", str(1 << 40), "--size", str(_MESSAGE_BYTES)),
            *publisher.arguments,
            "--json",
        ),
        env=magnetar_environment(),
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        yield
        assert process.poll() is None, "the publisher ended"
    finally:
        os.kill(process.pid, signal.SIGKILL)
        process.wait()


def _sample(cluster: RealCluster, is_over: Callable[[], bool], *, for_s: float = 0) -> _Samples:
    """Take samples for a time, or until a condition holds, which is checked once a second."""
    samples = _Samples()
    start_s = time.monotonic()
    look_s = start_s + 1
    while True:
        now = time.monotonic()
        published = _metric(cluster.http_url("broker-1"), _PUBLISHED)
        copied = _metric(cluster.http_url("autorecovery-1"), _COPIED)
        samples.rows.append((now, published, copied))
        if for_s and now > start_s + for_s:
            return samples
        if now > look_s:
            if is_over():
                return samples
            look_s = time.monotonic() + 1
        assert now < start_s + _TIMEOUT_S, "copies are still missing"
        _pass_time(_SAMPLE_S)


def _metric(url: str, name: str) -> float:
    """Return the sum of a metric over all labels."""
    text = call(url, "GET", "/metrics", timeout_s=10, expect=200).text
    pattern = rf"^{name}(?:\{{[^}}]*\}})? ([0-9.e+]+)$"
    return sum(float(value) for value in re.findall(pattern, text, re.MULTILINE))


def _is_free_of(metadata_url: str, bookie_id: str, ledger_ids: Sequence[int] = ()) -> bool:
    """Whether none of these ledgers (by default: of all ledgers) refers to the bookie any more."""

    async def look() -> bool:
        async with open_client(metadata_url) as client:
            for ledger_id in ledger_ids or [each async for each in client.manager.ledger_ids()]:
                metadata = (await client.manager.read(ledger_id)).metadata
                if any(bookie_id in fragment.bookies for fragment in metadata.ensembles):
                    return False
        return True

    return uvloop.run(look())


def _pass_time(seconds: float) -> None:
    """Let time pass."""
    threading.Event().wait(seconds)
