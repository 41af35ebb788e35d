"""Cost of a bookie's upkeep: garbage collection, an index of small runs, very many ledgers."""

from dataclasses import dataclass

import uvloop

from tests.bench import gc_bench, storage_load
from tests.bench.report import Effort, Figure, Report
from tests.bench.storage_process import BenchBookie

_MB = 1_000_000
_RUN_ENTRIES = 100
_SMALL_BYTES = 100


@dataclass(frozen=True, slots=True)
class UpkeepExtent:
    """Amount of data to keep up."""

    ledgers: int
    compacted_mb: int
    indexed_ledgers: int

    @classmethod
    def of(cls, effort: Effort) -> "UpkeepExtent":
        return _QUICK if effort.repeats == 1 else _FULL


_FULL = UpkeepExtent(ledgers=1_000_000, compacted_mb=1_000, indexed_ledgers=50_000)
_QUICK = UpkeepExtent(ledgers=20_000, compacted_mb=200, indexed_ledgers=5_000)


class UpkeepBench:
    """Measures the upkeep; its figures go to the report."""

    def __init__(self, report: Report, effort: Effort) -> None:
        self._report = report
        self._extent = UpkeepExtent.of(effort)

    def storage_compaction(self) -> None:
        """Measure adds during a compaction."""
        found = gc_bench.adds_beside_compaction(
            self._report.directory / "compaction", megabytes=self._extent.compacted_mb
        )
        name = f"bookie, adds while {self._extent.compacted_mb} MB are compacted"
        if "ratio" not in found:
            self._report.add(
                Figure(
                    name=f"{name}: nothing was measured",
                    unit="MB/s",
                    value=0.0,
                    target=">= 0.8 of without",
                    met=False,
                    details=found,
                )
            )
            return
        beside, idle = _number(found, "adds_beside_mb_per_s"), _number(found, "adds_idle_mb_per_s")
        ratio = _number(found, "ratio")
        self._report.add(
            Figure(
                name=name,
                unit="MB/s",
                value=beside,
                target=">= 0.8 of without",
                met=ratio >= 0.8,
                ratio=ratio,
                beside="adds without",
                beside_value=idle,
                details=found,
            )
        )

    def storage_index_size(self) -> None:
        """Measure the bytes of the index on disk per entry, when each ledger has one run of 100
        entries.

        Includes the index's state of each ledger, and RocksDB's own files.
        """
        ledger_ids = range(1, self._extent.indexed_ledgers + 1)
        with BenchBookie(self._report.directory / "index-size") as bookie:
            added = uvloop.run(
                storage_load.add(
                    bookie.port,
                    ledger_ids,
                    entries=_RUN_ENTRIES,
                    size=_SMALL_BYTES,
                    entries_per_add=_RUN_ENTRIES,
                    in_flight=10 * _RUN_ENTRIES,
                )
            )
            bookie.stop()
            index = (bookie.data / "ledgers" / "index").rglob("*")
            size = sum(each.stat().st_size for each in index if each.is_file())
        self._report.add(
            Figure(
                name=f"bookie, index per entry at runs of {_RUN_ENTRIES}",
                unit="bytes",
                value=round(size / added.entries, 2),
                target="<= 2",
                met=size / added.entries <= 2,
            )
        )

    def storage_many_ledgers(self) -> None:
        """Measure a round of garbage collection, a restart and the memory after it, with ledgers of
        ten entries."""
        count = self._extent.ledgers
        directory = self._report.directory / "many-ledgers"
        found = gc_bench.round_over_many_ledgers(directory, ledgers=count)
        with BenchBookie(directory, data_name="data") as bookie:
            started_s = bookie.start_s
            resident = bookie.seen().resident_bytes
        name = f"bookie with {count:,} ledgers"
        self._report.add_limit(
            f"{name}, round of garbage collection",
            "s",
            [_number(found, "first_round_s")],
            limit=60,
        )
        self._report.add_limit(f"{name}, restart", "s", [started_s], limit=5)
        self._report.add_limit(f"{name}, memory", "MB", [resident / _MB], limit=1000)


def _number(found: dict[str, object], name: str) -> float:
    value = found[name]
    assert isinstance(value, int | float), (name, value)
    return float(value)
