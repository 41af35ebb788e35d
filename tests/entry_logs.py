"""Shared by the tests of entry logs: writers of small logs and runs to write."""

from collections.abc import Sequence
from pathlib import Path

from magnetar.bookie.engine.write_cache import LedgerRuns
from magnetar.bookie.entry_logs.log_names import LogIds
from magnetar.bookie.entry_logs.log_writer import SYNC_BYTES, EntryLogWriter
from magnetar.bookie.entry_logs.packet_run import block_run
from magnetar.bookie.entry_logs.run_plan import PlannedRun, plan_runs
from magnetar.ledger.ports import Disk
from magnetar.ledger.system import SystemClock, SystemDisk
from tests.ledger_storage import make_block


def planned(ledger_id: int, ids: Sequence[int], payload: bytes = b"") -> PlannedRun:
    """Return one run of entries with equal payloads."""
    runs = LedgerRuns()
    runs.append(block_run(make_block(ledger_id, ids, payload), ids), 0)
    (run,) = plan_runs(runs, entries_max=4096, bytes_max=1 << 20)
    return run


def make_writer(
    directory: Path,
    *,
    disk: Disk | None = None,
    log_bytes_max: int = 1 << 30,
    log_ledgers_max: int = 100_000,
    sync_bytes: int = SYNC_BYTES,
) -> EntryLogWriter:
    return EntryLogWriter(
        str(directory),
        ids=LogIds(0),
        log_bytes_max=log_bytes_max,
        log_ledgers_max=log_ledgers_max,
        disk=disk or SystemDisk(),
        clock=SystemClock(),
        sync_bytes=sync_bytes,
    )
