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
    """Longest duration of a gentle flush, in seconds; 0: as fast as it can."""
    entry_log_bytes_max: int = 1 << 30
    entry_log_ledgers_max: int = 100_000
    run_bytes_max: int = 1 << 20
    """Bytes of packets in a run. Larger runs make a smaller index, but read more bytes in vain."""
    run_entries_max: int = 4096
    open_files_max: int = 128
    """Entry logs kept open for reading."""
    read_workers: int = 4
    """Disk reads in progress at the same time."""
    pending_reads_max: int = 10_000
    """Reads that may wait for the disk; further ones are refused."""
    index_page_bytes: int = 8192
    """Size of a page in a new page file (`interleaved`), in bytes; 8192 hold 1022 entries."""
    index_cache_bytes: int = 64 << 20
    """Bytes of memory for pages and headers of page files."""
    index_open_files_max: int = 512
    """Page files kept open for reading."""
