"""The engine kind of one ledger directory, and its share of the bookie's memory and files.

`BookieSettings` bounds the whole bookie; `Bookie` divides those bounds among its directories.
"""

from dataclasses import dataclass

from magnetar.bookie.indexes.index_mark import EngineKind


@dataclass(frozen=True, slots=True)
class StorageOptions:
    """Kind and sizes of an `EntryStorage` and of its index."""

    engine: EngineKind = "db"
    write_buffer_bytes: int = 64 << 20
    """Size at which the active buffer wants a flush. Two of them bound the write cache."""
    read_cache_bytes: int = 64 << 20
    flush_spread_s: float = 0.0
    """How long a flush may take that nobody waits for; 0: no longer than it must."""
    entry_log_bytes_max: int = 1 << 30
    entry_log_ledgers_max: int = 100_000
    run_bytes_max: int = 1 << 20
    """Packets of a run. Larger runs make a smaller index, and more is read ahead for nothing."""
    run_entries_max: int = 4096
    open_files_max: int = 128
    """Entry logs kept open for reading."""
    read_workers: int = 4
    """Reads from disk that are under way at the same time."""
    pending_reads_max: int = 10_000
    """Reads that may wait for the disk."""
    index_page_bytes: int = 8192
    """A page of a new page file (`interleaved`): 1022 entries."""
    index_cache_bytes: int = 64 << 20
    """Pages and headers of page files in memory."""
    index_open_files_max: int = 512
    """Page files kept open for reading."""
