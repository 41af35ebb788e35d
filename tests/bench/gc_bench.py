"""Cost of garbage collection: adds during a compaction, and a round over very many ledgers.

Each function measures one thing and returns its results, ready for JSON. To run them alone:

    python -m tests.bench.gc_bench [--quick] [--directory DIR] [compaction | round]
"""

import argparse
import asyncio
import json
import logging
import os
import random
import sqlite3
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import structlog

from magnetar.bookie.bookie import Bookie
from magnetar.bookie.settings import BookieSettings
from magnetar.bookie.storage import LedgerState as LocalState
from magnetar.ledger.ledger_manager import LedgerManager
from magnetar.ledger.ledger_metadata import Fragment, LedgerMetadata, LedgerState
from magnetar.ledger.metadata.url import open_store
from magnetar.ledger.system import SystemClock, SystemDisk, SystemNetwork
from magnetar.ledger.wire import PACKET_HEADER, encode_block
from tests.bench import storage_load
from tests.bench.loop_probe import Probe
from tests.bench.patience import wait_for_the_disk
from tests.bench.storage_process import BenchBookie

_MB = 1_000_000
_ENTRY_BYTES = 100_000
_SLICE_BYTES = 32 * _MB
"""Bytes that the writer adds between two checks of the compaction."""
_OLD_LEDGERS = 20
_DEAD_LEDGERS = 6
"""Number of deleted ledgers. Seven tenths of each log stay live: the most costly logs that a major
compaction takes."""
_BOOKIE_ID = "bench"
_SLICES_IDLE = 12
_GIVE_UP_S = 300.0


def metadata_of(ledger_id: int, token: int) -> LedgerMetadata:
    return LedgerMetadata(
        ledger_id=ledger_id,
        ensemble_size=1,
        write_quorum=1,
        ack_quorum=1,
        state=LedgerState.OPEN,
        last_entry_id=-1,
        length=0,
        ensembles=(Fragment(0, (_BOOKIE_ID,)),),
        created_ms=1,
        creation_token=token,
    )


# Compaction


def adds_beside_compaction(directory: Path, *, megabytes: int = 1_000) -> dict[str, object]:
    """Measure the rate of adds while so many MB of entry logs are compacted, over the rate without.

    One writer adds 100 KB entries all the time. The compaction starts by itself, at most at the
    rate of its settings. A compaction that begins and ends between two checks leaves no `ratio`.
    """
    settings: dict[str, object] = {"gc_interval_s": 0, "entry_log_bytes_max": 64 << 20}
    with BenchBookie(directory, settings) as bookie:
        old, new = asyncio.run(_make_ledgers(directory))
        entries = megabytes * _MB // _ENTRY_BYTES // len(old)
        asyncio.run(storage_load.add(bookie.port, old, entries=entries, size=_ENTRY_BYTES))
        bookie.stop()
        asyncio.run(_delete_ledgers(directory, old[:_DEAD_LEDGERS]))
        bookie.settings = {
            **settings,
            "gc_interval_s": 12,  # the first round comes after six to twelve
            "gc_major_interval_s": 0.001,
            "gc_minor_interval_s": 0,
        }
        bookie.start()
        return asyncio.run(_write_beside(bookie, new))


async def _make_ledgers(directory: Path) -> tuple[list[int], list[int]]:
    """Create ledgers to be compacted, and one for the writer."""
    store = await open_store(f"embedded:{directory / 'metadata.db'}")
    manager = LedgerManager(store, random=random.Random(1), clock=SystemClock())
    made = [(await manager.create(metadata_of)).metadata.ledger_id for _ in range(_OLD_LEDGERS + 1)]
    await store.close()
    return made[:-1], made[-1:]


async def _delete_ledgers(directory: Path, ledger_ids: Sequence[int]) -> None:
    store = await open_store(f"embedded:{directory / 'metadata.db'}")
    manager = LedgerManager(store, random=random.Random(1), clock=SystemClock())
    for ledger_id in ledger_ids:
        await manager.delete(ledger_id)
    await store.close()


async def _write_beside(bookie: BenchBookie, ledger_ids: Sequence[int]) -> dict[str, object]:
    idle: list[float] = []
    beside: list[float] = []
    entries = _SLICE_BYTES // _ENTRY_BYTES
    first = after = 0
    began_s = ended_s = 0.0
    old_logs = _logs(bookie)
    until_s = time.monotonic() + _GIVE_UP_S
    while after < _SLICES_IDLE and time.monotonic() < until_s:
        ran_before = _is_compacting(bookie)
        measured = await storage_load.add(
            bookie.port, ledger_ids, entries=entries, size=_ENTRY_BYTES, first=first
        )
        first += entries
        runs_now = _is_compacting(bookie)
        if runs_now and not began_s:
            began_s = time.monotonic()
        if ran_before and runs_now:
            beside.append(measured.mb_per_s)
            ended_s = time.monotonic()
        elif not ran_before and not runs_now:
            idle.append(measured.mb_per_s)
            after += bool(beside) or not old_logs <= _logs(bookie)
    seen = bookie.seen()
    copied = seen.number("gc_copied_bytes")
    found: dict[str, object] = {
        "slices_idle": len(idle),
        "slices_beside": len(beside),
        "compacted_logs": seen.number("gc_compacted_logs"),
        "copied_mb": round(copied / _MB, 1),
        "given_back_mb": round(seen.number("gc_compacted_bytes") / _MB, 1),
        "compaction_s": round(ended_s - began_s, 1),
        "loop_lateness_ms": seen.lateness_ms,
    }
    if idle and beside:
        found |= {
            "adds_idle_mb_per_s": round(statistics.median(idle), 1),
            "adds_beside_mb_per_s": round(statistics.median(beside), 1),
            "ratio": round(statistics.median(beside) / statistics.median(idle), 3),
        }
    return found


def _logs(bookie: BenchBookie) -> set[str]:
    """Return the names of the entry logs; compacted ones are deleted."""
    return {path.name for path in (bookie.data / "ledgers" / "entry-logs").glob("*.log")}


def _is_compacting(bookie: BenchBookie) -> bool:
    return any(bookie.data.rglob("*.compact*"))


# A round over many ledgers


def round_over_many_ledgers(directory: Path, *, ledgers: int = 1_000_000) -> dict[str, object]:
    """Measure a round of garbage collection of a bookie with very many ledgers.

    Each ledger has ten small entries, and one in a thousand is dead. The metadata store is
    embedded.
    """
    directory.mkdir(parents=True, exist_ok=True)
    return asyncio.run(_round_over(directory, ledgers))


async def _round_over(directory: Path, ledgers: int) -> dict[str, object]:
    url = f"embedded:{directory / 'metadata.db'}"
    store = await open_store(url)
    manager = LedgerManager(store, random=random.Random(1), clock=SystemClock())
    await manager.create(metadata_of)  # names the layout
    await store.close()
    _insert_ledgers(directory / "metadata.db", ledgers)
    store = await open_store(url)
    bookie = Bookie(
        BookieSettings(
            bookie_id=_BOOKIE_ID,
            data_directory=directory / "data",
            port=0,
            gc_interval_s=0,
            entry_log_bytes_max=max(1 << 20, ledgers * 256),  # four logs and a bit
        ),
        store,
        clock=SystemClock(),
        network=SystemNetwork(),
        disk=SystemDisk(),
        random=random.Random(1),
        on_fatal=_raise,
    )
    await bookie.start()
    try:
        await _fill(bookie, ledgers)
        manager = LedgerManager(store, random=random.Random(1), clock=SystemClock())
        dead = range(0, ledgers, 1000)
        for ledger_id in dead:
            await manager.delete(ledger_id)
        results = []
        lateness: list[dict[str, float]] = []
        for _ in range(2):  # the second round knows the logs already
            probe = Probe()
            probe.start()
            started_s, cpu_s = time.perf_counter(), time.process_time()
            report = await bookie.gc.force(major=False)
            took_s = time.perf_counter() - started_s
            cpu_s = time.process_time() - cpu_s
            results.append((took_s, cpu_s, report))
            lateness.append(probe.take().lateness_ms)
            assert report.problems == (), report
        assert results[0][2].deleted_ledgers == len(dead), results[0][2]
        return {
            "ledgers": ledgers,
            "dead_ledgers": len(dead),
            "entry_logs": bookie.metrics.gc.logs,
            "first_round_s": round(results[0][0], 2),
            "first_round_cpu_s": round(results[0][1], 2),
            "next_round_s": round(results[1][0], 2),
            "first_round_loop_lateness_ms": lateness[0],
            "resident_mb": _resident_mb(),
        }
    finally:
        await bookie.stop()
        await store.close()


def _insert_ledgers(path: Path, ledgers: int) -> None:
    """Insert ledgers straight into the tables: a million single creations would take many
    minutes."""
    connection = sqlite3.connect(path)
    with connection:
        template: str = metadata_of(0, 1).to_json().decode()
        assert '"ledger_id":0,' in template
        numbers: dict[str, int] = dict(connection.execute("SELECT path, number FROM nodes"))

        def directory(path: str) -> int:
            if path not in numbers:
                parent = directory(path.rpartition("/")[0] or "/")
                cursor = connection.execute(
                    "INSERT INTO nodes (path, parent, value) VALUES (?, ?, x'')", (path, parent)
                )
                numbers[path] = int(cursor.lastrowid or 0)
            return numbers[path]

        def rows(first: int, last: int) -> list[tuple[str, int, bytes]]:
            digits = f"{first:010d}"
            folder = f"/ledgers/{digits[:2]}/{digits[2:6]}"
            number = directory(folder)
            return [
                (
                    f"{folder}/L{ledger_id % 10_000:04d}",
                    number,
                    template.replace('"ledger_id":0,', f'"ledger_id":{ledger_id},').encode(),
                )
                for ledger_id in range(first, last)
            ]

        for first in range(0, ledgers, 10_000):
            connection.executemany(
                "INSERT OR REPLACE INTO nodes (path, parent, value) VALUES (?, ?, ?)",
                rows(first, min(first + 10_000, ledgers)),
            )
    connection.close()


async def _fill(bookie: Bookie, ledgers: int) -> None:
    """Add ten entries to each ledger, with a flush whenever the storage wants one."""
    storage = bookie.parts.storage
    state = LocalState(b"k" * 20, fenced=False, last_add_confirmed=8)
    payload = os.urandom(50)
    for ledger_id in range(ledgers):
        storage.put_state(ledger_id, state)
        block = encode_block(
            [
                PACKET_HEADER.pack(ledger_id, entry_id, entry_id - 1, 50 * (entry_id + 1)) + payload
                for entry_id in range(10)
            ]
        )
        storage.add(ledger_id, block, range(10))
        if storage.wants_flush:
            await storage.flush()
    await storage.flush()


def _resident_mb() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") // _MB


def _raise(error: BaseException) -> None:
    raise error


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("what", nargs="?", choices=["compaction", "round"])
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--directory", type=Path)
    arguments = parser.parse_args()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING))
    wait_for_the_disk()
    results: dict[str, object] = {}
    with tempfile.TemporaryDirectory(dir=arguments.directory) as name:
        if arguments.what in (None, "compaction"):
            results["adds_beside_compaction"] = adds_beside_compaction(
                Path(name) / "compaction", megabytes=200 if arguments.quick else 1_000
            )
        if arguments.what in (None, "round"):
            results["round_over_many_ledgers"] = round_over_many_ledgers(
                Path(name) / "round", ledgers=20_000 if arguments.quick else 1_000_000
            )
    json.dump(results, sys.stdout, indent=2)
    print()


if __name__ == "__main__":
    main()
