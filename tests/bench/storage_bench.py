"""One bookie process by itself: how much of the disk's and the page cache's speed the client gets.

The bookie has its default settings, except those of patience.py. Writes are compared with a plain
file that is written and synced in the same minute; reads, with plain reads of the same files.
"""

import statistics
from dataclasses import dataclass, field

from tests.bench import storage_load, storage_yardstick
from tests.bench.loop_probe import Lateness, PageReports
from tests.bench.report import Effort, Figure, Report
from tests.bench.storage_client import LoadProcess
from tests.bench.storage_load import Measured
from tests.bench.storage_process import BenchBookie, Seen
from tests.bench.storage_witness import witness

_MB = 1_000_000
_KB = 1024
_LARGE_BYTES = 100_000
_IN_TURN_LEDGERS = 200
_LATENESS_MS_MAX = 10


@dataclass(frozen=True, slots=True)
class Extent:
    """Amount of data to write and read."""

    write_mb: int
    small_write_mb: int
    read_mb: int
    in_turn_mb: int
    random_reads: int
    cached_mb: int

    @classmethod
    def of(cls, effort: Effort) -> "Extent":
        return _QUICK if effort.repeats == 1 else _FULL


_FULL = Extent(
    write_mb=2_000,
    small_write_mb=400,
    read_mb=1_000,
    in_turn_mb=800,
    random_reads=200_000,
    cached_mb=200,
)
_QUICK = Extent(
    write_mb=200,
    small_write_mb=50,
    read_mb=100,
    in_turn_mb=100,
    random_reads=20_000,
    cached_mb=50,
)


@dataclass
class LoadLateness:
    """How long the event loop was held, over all runs of a load."""

    moments: int = 0
    outside: int = 0
    """Number of moments outside of passes (loop_probe.py)."""
    runs: list[dict[str, float]] = field(default_factory=list)
    held: list[list[dict[str, object]]] = field(default_factory=list)
    """Per run the longest times, with the steps of the loop in them."""
    _latest_ms: list[float] = field(default_factory=list)
    _latest_outside_ms: list[float] = field(default_factory=list)

    def add(self, seen: Seen | Lateness) -> None:
        """Add a run."""
        self.runs.append(seen.lateness_ms)
        if isinstance(seen, Seen):
            self.held.append(seen.held)
        moments = int(seen.lateness_ms["of"])
        self.moments += moments
        self.outside += int(seen.lateness_ms.get("outside_of", moments))
        self._latest_ms += seen.latest_ms
        self._latest_outside_ms += seen.latest_outside_ms

    @property
    def p999_ms(self) -> float:
        """Lateness that one of a thousand moments, of all runs together, exceeded."""
        return sorted(self._latest_ms, reverse=True)[self.moments // 1000]

    def details(self) -> dict[str, object]:
        """Return details for the report. `outside_passes_p999`: of the moments that are not near a
        pass."""
        outside = sorted(self._latest_outside_ms, reverse=True)
        return {
            "p999": self.p999_ms,
            "of": self.moments,
            "outside_passes_p999": outside[self.outside // 1000] if outside else None,
            "outside_passes_of": self.outside,
            "reported_mib": sum(each.get("reported_mib", 0) for each in self.runs),
            "runs": self.runs,
            "held": self.held,
        }


@dataclass
class StorageBench:
    """Measures one bookie process; its figures go to the report."""

    report: Report
    effort: Effort
    load: LoadProcess
    _lateness: dict[str, LoadLateness] = field(default_factory=dict)
    _witnesses: LoadLateness = field(default_factory=LoadLateness)

    @property
    def _extent(self) -> Extent:
        return Extent.of(self.effort)

    def storage_writes(self) -> None:
        """Measure adds beside the disk's own speed, and the bytes that they write."""
        self._write("100 KB", _LARGE_BYTES, self._extent.write_mb, entries_per_add=1, least=0.5)
        self._write("1 KB", _KB, self._extent.small_write_mb, entries_per_add=20, least=None)

    def storage_reads(self) -> None:
        """Measure reads from the page cache: one ledger in order, entries at random, ledgers
        written in turn."""
        directory = self.report.directory / "storage-reads"
        with BenchBookie(directory) as bookie:
            in_order = self._read_in_order(bookie)
            self._read_at_random(bookie)
            self._read_written_in_turn(bookie, in_order)

    def storage_caches(self) -> None:
        """Measure the memory that the caches take, per byte that they count."""
        ratios = [self._write_cache(number) for number in range(self.effort.repeats)]
        self._add_memory("write cache, memory per byte it counts", ratios)
        ratios = [self._read_cache(number) for number in range(self.effort.repeats)]
        self._add_memory("read cache, memory per byte of its setting", ratios)

    def storage_event_loop(self) -> None:
        """Report how long the event loop was held under the loads so far."""
        if not self._lateness:
            return
        worst = max(each.p999_ms for each in self._lateness.values())
        details: dict[str, object] = {load: each.details() for load, each in self._lateness.items()}
        machine: float | None = None
        if self._witnesses.runs:
            machine = self._witnesses.p999_ms
            details["witness"] = self._witnesses.details()
        self.report.add(
            Figure(
                name="bookie, event loop held, p99.9, worst load",
                unit="ms",
                value=worst,
                target=f"<= {_LATENESS_MS_MAX}",
                met=worst <= _LATENESS_MS_MAX,
                ratio=round(worst / max(machine, 0.001), 2) if machine is not None else None,
                beside="witness" if machine is not None else "",
                beside_value=machine,
                details=details,
            )
        )

    def _write(
        self, name: str, size: int, megabytes: int, *, entries_per_add: int, least: float | None
    ) -> None:
        """Measure adds until all entries are in the entry logs: the orderly stop is part of the
        time."""
        entries = megabytes * _MB // size
        yard = self.report.directory
        rates: list[float] = []
        acknowledged: list[float] = []
        ratios: list[float] = []
        besides: list[float] = []
        costs: list[float] = []
        device_costs: list[float] = []
        for number in range(self.effort.repeats):
            before = storage_yardstick.write_mb_per_s(yard, megabytes * _MB)
            PageReports().settle()  # the yardstick freed as many bytes as it wrote
            self._witnesses.add(witness(yard, self._extent.write_mb))
            with BenchBookie(yard / f"storage-writes-{size}-{number}") as bookie:
                started = bookie.seen()  # the work of its start is no part of the load
                device_bytes = storage_yardstick.device_written_bytes(yard)
                measured = self.load.run(
                    storage_load.add,
                    bookie.port,
                    [1],
                    entries=entries,
                    size=size,
                    entries_per_add=entries_per_add,
                    in_flight=100 if size > _KB else 1000,
                )
                self._see(bookie, f"adds, {name}")
                final = bookie.stop()
                device_bytes = storage_yardstick.device_written_bytes(yard) - device_bytes
            after = storage_yardstick.write_mb_per_s(yard, megabytes * _MB)
            besides.append((before + after) / 2)
            acknowledged.append(measured.mb_per_s)
            rates.append(measured.payload_bytes / (measured.seconds + final.stop_s) / _MB)
            ratios.append(rates[-1] / besides[-1])
            written = final.written_bytes - started.written_bytes
            costs.append(written / measured.payload_bytes)
            device_costs.append(device_bytes / measured.payload_bytes)
        ratio = statistics.median(ratios)
        self.report.add(
            Figure(
                name=f"bookie, adds of {name}, journal and entry log",
                unit="MB/s",
                value=round(statistics.median(rates), 1),
                target=f">= {least} of the disk" if least else "",
                met=least is None or ratio >= least,
                ratio=round(ratio, 2),
                beside="synced file",
                beside_value=round(statistics.median(besides), 1),
                runs=[round(each, 1) for each in rates],
                details={"acknowledged_mb_per_s": [round(each, 1) for each in acknowledged]},
            )
        )
        cost = statistics.median(costs)
        self.report.add(
            Figure(
                name=f"bookie, bytes written per byte of {name}",
                unit="bytes",
                value=round(cost, 3),
                target="<= 2.1",
                met=cost <= 2.1,
                runs=[round(each, 3) for each in costs],
                # Bytes of the whole machine, with the metadata of the file system.
                details={"by_the_disk_itself": [round(each, 3) for each in device_costs]},
            )
        )

    def _read_in_order(self, bookie: BenchBookie) -> Measured:
        """Measure reading a ledger of 1 KB entries from its first to its last."""
        entries = self._extent.read_mb * _MB // _KB
        self.load.run(
            storage_load.add,
            bookie.port,
            [1],
            entries=entries,
            size=_KB,
            entries_per_add=50,
            in_flight=2000,
        )
        rates: list[Measured] = []
        besides: list[float] = []
        for _ in range(self.effort.repeats):
            bookie.restart()  # empties the caches: all reads come from the entry logs
            besides.append(storage_yardstick.read_mb_per_s(bookie.entry_logs))
            bookie.seen()
            rates.append(
                self.load.run(storage_load.read_in_order, bookie.port, 1, entries=entries, size=_KB)
            )
            self._see(bookie, "reads in order")
        value = statistics.median(each.mb_per_s for each in rates)
        self._add_read("one ledger in order, 1 KB entries", "MB/s", value, 300, besides)
        return max(rates, key=lambda each: each.mb_per_s)

    def _read_at_random(self, bookie: BenchBookie) -> None:
        entries = self._extent.read_mb * _MB // _KB
        rates: list[float] = []
        for number in range(self.effort.repeats):
            bookie.restart()
            storage_yardstick.read_mb_per_s(bookie.entry_logs)
            bookie.seen()
            measured = self.load.run(
                storage_load.read_at_random,
                bookie.port,
                [1],
                entries=entries,
                size=_KB,
                reads=self._extent.random_reads,
                seed=number,
            )
            rates.append(measured.entries_per_s)
            self._see(bookie, "reads at random")
        value = statistics.median(rates)
        self.report.add(
            Figure(
                name="bookie, single reads of 1 KB at random",
                unit="reads/s",
                value=round(value),
                target=">= 20,000",
                met=value >= 20_000,
                runs=[round(each) for each in rates],
            )
        )

    def _read_written_in_turn(self, bookie: BenchBookie, in_order: Measured) -> None:
        """Measure reading ledgers whose entries were added in turn, one from each; the sorted flush
        has brought them together."""
        entries = self._extent.in_turn_mb * _MB // _KB // _IN_TURN_LEDGERS
        ledger_ids = range(1000, 1000 + _IN_TURN_LEDGERS)
        self.load.run(
            storage_load.add, bookie.port, ledger_ids, entries=entries, size=_KB, in_flight=2000
        )
        bookie.restart()
        storage_yardstick.read_mb_per_s(bookie.entry_logs)
        bookie.seen()
        rates = [
            self.load.run(
                storage_load.read_in_order, bookie.port, ledger_id, entries=entries, size=_KB
            ).mb_per_s
            for ledger_id in ledger_ids
        ]
        self._see(bookie, "reads of ledgers written in turn")
        ratios = sorted(rate / in_order.mb_per_s for rate in rates)
        middle = statistics.median(ratios)
        self.report.add(
            Figure(
                name=f"bookie, {_IN_TURN_LEDGERS} ledgers written in turn, read one by one",
                unit="MB/s",
                value=round(statistics.median(rates), 1),
                target=">= 0.5 of in order",
                met=middle >= 0.5,
                ratio=round(middle, 2),
                beside="one ledger",
                beside_value=round(in_order.mb_per_s, 1),
                details={"slowest_ratio": round(ratios[0], 2), "p10_ratio": round(ratios[20], 2)},
            )
        )

    def _write_cache(self, number: int) -> float:
        """Return the memory per counted byte for entries of 1 KB that come one by one."""
        settings = {"write_cache_bytes_max": 1 << 30, "flush_interval_s": 600}
        entries = self._extent.cached_mb * _MB // _KB
        with BenchBookie(
            self.report.directory / f"storage-write-cache-{number}", settings
        ) as bookie:
            warm = entries // 10
            self.load.run(storage_load.add, bookie.port, [1], entries=warm, size=_KB)
            before = bookie.seen()
            self.load.run(storage_load.add, bookie.port, [2], entries=entries, size=_KB)
            after = bookie.seen()
        counted = after.number("storage_write_cache_bytes") - before.number(
            "storage_write_cache_bytes"
        )
        return (after.resident_bytes - before.resident_bytes) / counted

    def _read_cache(self, number: int) -> float:
        """Return the resident bytes that a larger read cache takes for the same reads, per byte of
        cache."""
        small, more = 8 << 20, self._extent.cached_mb << 20
        entries = 2 * more // _KB
        with BenchBookie(self.report.directory / f"storage-read-cache-{number}") as bookie:
            self.load.run(
                storage_load.add,
                bookie.port,
                [1],
                entries=entries,
                size=_KB,
                entries_per_add=50,
                in_flight=2000,
            )
            resident: list[int] = []
            for size in (small, small + more):
                bookie.settings = {"read_cache_bytes_max": size}
                bookie.restart()
                self.load.run(storage_load.read_in_order, bookie.port, 1, entries=entries, size=_KB)
                resident.append(bookie.seen().resident_bytes)
        return (resident[1] - resident[0]) / more

    def _add_memory(self, name: str, ratios: list[float]) -> None:
        value = statistics.median(ratios)
        self.report.add(
            Figure(
                name=f"bookie, {name}",
                unit="bytes",
                value=round(value, 3),
                target="<= 1.1",
                met=value <= 1.1,
                runs=[round(each, 3) for each in ratios],
            )
        )

    def _add_read(
        self, name: str, unit: str, value: float, least: float, besides: list[float]
    ) -> None:
        beside = statistics.median(besides)
        self.report.add(
            Figure(
                name=f"bookie, {name}",
                unit=unit,
                value=round(value, 1),
                target=f">= {least:,}",
                met=value >= least,
                ratio=round(value / beside, 3),
                beside="plain reads",
                beside_value=round(beside, 1),
            )
        )

    def _see(self, bookie: BenchBookie, load: str) -> Seen:
        seen = bookie.seen()
        self._lateness.setdefault(load, LoadLateness()).add(seen)
        return seen
