"""Bytes of index per entry on the disk, for both kinds of index.

`python -m tests.bench.index_size` prints JSON: bytes per entry at runs of 1, 10, 100 and 1000. The
`db` index is measured after RocksDB has written out its log and compacted itself: before that, it
takes as much again for a while.
"""

import json
import shutil
import sys
import tempfile
from pathlib import Path

from rocksdict import Options, Rdict

from magnetar.bookie.entry_logs.entry_log import RunLocation, StoredRun
from magnetar.bookie.indexes.index_mark import EngineKind, IndexMark
from magnetar.bookie.indexes.location_index import IndexChanges, LocationIndex, NewRun
from magnetar.bookie.indexes.page_index import PageIndex
from magnetar.bookie.indexes.rocks_index import RocksIndex
from magnetar.ledger.system import SystemDisk

_LEDGERS = 100
_ENTRY_BYTES = 1024
_LOG_BYTES = 1 << 30
_RUNS_PER_FLUSH = 10_000
_BLOCK_BYTES = 512
"""Unit in which the system counts a file's disk space: page files have holes."""


def index_bytes_per_entry(
    directory: Path, *, entries: int, run_entries: int = 100, engine: EngineKind = "db"
) -> float:
    """Return the bytes of the index on disk per entry; the index stays in `directory`."""
    index = _open(directory, engine)
    runs = -(-entries // run_entries)
    run_bytes = run_entries * (_ENTRY_BYTES + 4)
    place = 0
    for begin in range(0, runs, _RUNS_PER_FLUSH):
        flushed: dict[int, list[NewRun]] = {}
        for number in range(begin, min(begin + _RUNS_PER_FLUSH, runs)):
            # The next run of each ledger: blocks of many ledgers alternate.
            ledger_id, of_ledger = number % _LEDGERS, number // _LEDGERS
            first = of_ledger * run_entries
            log_id, offset = 1 + place // _LOG_BYTES, 64 + place % _LOG_BYTES
            place += run_bytes
            location = RunLocation(log_id, offset, run_bytes, run_entries, False)
            last = first + run_entries - 1
            new = NewRun(location, [(first, last)], first, last)
            flushed.setdefault(ledger_id, []).append(new)
        index.commit(IndexChanges(1 + place // _LOG_BYTES, runs=flushed))
    index.close()
    if engine == "db":
        _compact(directory / "index")
    return _disk_bytes(directory / "index") / (runs * run_entries)


def _open(directory: Path, engine: EngineKind) -> LocationIndex:
    disk = SystemDisk()
    mark = IndexMark(str(directory / "index-mark"), disk)
    path = str(directory / "index")
    if engine == "db":
        return RocksIndex.open(path, mark)
    return PageIndex.open(path, mark, disk=disk, locate=_locate)


def _locate(log_id: int, offset: int) -> StoredRun:
    raise AssertionError("nothing is read here")


def _compact(path: Path) -> None:
    database = Rdict(str(path), options=Options(raw_mode=True))
    database.flush()
    database.compact_range(None, None)
    database.close()


def _disk_bytes(path: Path) -> int:
    """Return the disk space of tables and page files; RocksDB's own files and the double write do
    not grow."""
    return sum(
        each.stat().st_blocks * _BLOCK_BYTES
        for each in path.rglob("*")
        if each.suffix in (".sst", ".idx")
    )


def main() -> None:
    entries = int(sys.argv[1]) if len(sys.argv) > 1 else 1_000_000
    engines: tuple[EngineKind, ...] = ("db", "interleaved")
    found: dict[str, dict[int, float]] = {engine: {} for engine in engines}
    for engine in engines:
        for run_entries in (1, 10, 100, 1000):
            directory = Path(tempfile.mkdtemp(prefix="magnetar-index-"))
            try:
                size = index_bytes_per_entry(
                    directory, entries=entries, run_entries=run_entries, engine=engine
                )
            finally:
                shutil.rmtree(directory)
            found[engine][run_entries] = round(size, 3)
    print(json.dumps({"entries": entries, "bytes_per_entry_by_run_entries": found}))


if __name__ == "__main__":
    main()
