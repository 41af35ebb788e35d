"""Settings of a bookie: frozen, and passed whole to the parts that read several of them."""

from pathlib import Path
from typing import Literal

from pydantic import ConfigDict, Field, model_validator

from magnetar.ledger.link_settings import LinkSettings
from magnetar.ledger.registration import DOMAIN_CHARACTERS_MAX
from magnetar.ledger.wire import FRAME_BYTES_MAX


class BookieSettings(LinkSettings):
    """Settings of how a bookie stores and serves. Units are in the names."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    data_directory: Path = Field(
        description="Directory of journal, ledgers, cookie and lock. One per bookie."
    )
    journal_directories: tuple[Path, ...] = Field(
        default=(),
        max_length=64,
        description="Journal directories, ideally one per device. The ledger id chooses the "
        "journal. Empty: journal in the data directory.",
    )
    ledger_directories: tuple[Path, ...] = Field(
        default=(),
        max_length=64,
        description="Directories of entry logs and indexes. The ledger id chooses the directory: "
        "never remove or reorder them. Empty: ledgers in the data directory.",
    )
    bookie_id: str = Field(
        default="",
        pattern=r"^([A-Za-z0-9.:-]{1,255})?$",
        description="Permanent name of this bookie in ensembles. Empty: host and port.",
    )
    host: str = Field(
        default="127.0.0.1",
        min_length=1,
        description="Address to listen on. A non-loopback address needs a shared secret or TLS, or "
        "insecure.",
    )
    insecure: bool = Field(
        default=False,
        description="Allow a non-loopback address without a shared secret and TLS: anybody who "
        "reaches the bookie may then read and write every ledger.",
    )
    advertised_host: str = Field(
        default="", description="Address that clients connect to. Empty: host."
    )
    port: int = Field(
        default=3181,
        ge=0,
        le=65_535,
        description="Port to listen on; 0 lets the system choose, and needs a bookie_id.",
    )
    rack: str = Field(
        default="",
        max_length=DOMAIN_CHARACTERS_MAX,
        description="Rack, power feed or switch of this bookie: write sets are spread over racks. "
        "Empty: unknown.",
    )
    zone: str = Field(
        default="",
        max_length=DOMAIN_CHARACTERS_MAX,
        description="Data centre or availability zone. Racks with the same name in two zones are "
        "two racks. Empty: unknown.",
    )
    storage_engine: Literal["db", "interleaved"] = Field(
        default="db",
        description="Index of entry locations: db (RocksDB, for many ledgers and random reads) or "
        "interleaved (one page file per ledger). `magnetar bookie-tool convert` changes it.",
    )
    allow_storage_expansion: bool = Field(
        default=False,
        description="Allow new, empty journal and ledger directories at the end of the lists. "
        "Stored entries stay where they are. Cannot be undone.",
    )
    integrity_stamp_missing_cookies: bool = Field(
        default=False,
        description="Allow a bookie that lost its directories to start with empty ones under its "
        "old id: its entries are fetched from the other bookies.",
    )
    integrity_fetch_bytes_max: int = Field(
        default=1 << 20,
        ge=1 << 10,
        le=FRAME_BYTES_MAX - (1 << 20),
        description="Bytes fetched from another bookie and stored in one step.",
    )
    integrity_copy_bytes_per_s_max: int = Field(
        default=64 << 20,
        ge=1 << 10,
        description="Bytes per second copied from other bookies by the check after a loss of data.",
    )
    heal_ledgers_max: int = Field(
        default=10_000,
        ge=1,
        le=1_000_000,
        description="Damaged ledgers queued for healing; the scrubber finds further ones again.",
    )
    heal_attempts_max: int = Field(
        default=5,
        ge=1,
        le=1_000,
        description="Failed attempts to heal damage before it is listed for repair; attempts "
        "continue.",
    )
    heal_retry_s: float = Field(
        default=1.0,
        gt=0,
        le=600,
        description="Delay before another attempt to heal damage or a ledger that lost entries; it "
        "doubles with each failure, up to ten minutes.",
    )
    local_consistency_check: bool = Field(
        default=False,
        description="Read and check all stored data before serving. Takes as long as reading the "
        "disks.",
    )
    scrub_period_days: float = Field(
        default=14.0,
        ge=0,
        le=3_650,
        description="All stored data is read and checked once in this period, evenly spread. "
        "0: never.",
    )
    scrub_bytes_per_s_max: int = Field(
        default=32 << 20,
        ge=1 << 10,
        description="Bytes per second that the scrubber reads when it is behind, per ledger "
        "directory.",
    )
    disk_check_interval_s: float = Field(
        default=10.0,
        gt=0,
        le=3_600,
        description="Time between two checks of the journal and ledger directories: whether they "
        "exist, and how full they are.",
    )
    disk_full_share: float = Field(
        default=0.95,
        gt=0,
        le=1,
        description="Used share of its file system at which a ledger directory is full: it takes "
        "no ordinary adds, and minor compaction stops.",
    )
    disk_warn_share: float = Field(
        default=0.90,
        gt=0,
        le=1,
        description="Used share of its file system at which a ledger directory is almost full, "
        "and major compaction stops.",
    )
    disk_low_water_share: float | None = Field(
        default=None,
        gt=0,
        le=1,
        description="A full directory is writable again below this used share. Unset: "
        "disk_full_share.",
    )
    recovery_add_free_bytes_min: int | None = Field(
        default=None,
        ge=0,
        description="While the bookie is read-only because of full disks, it accepts recovery adds "
        "as long as every ledger directory has this many bytes free. Unset: 1.2 entry logs.",
    )
    read_only_enabled: bool = Field(
        default=True,
        description="Whether a bookie with full disks becomes read-only; otherwise it stops.",
    )
    read_only_on_any_disk_full: bool = Field(
        default=True,
        description="One full ledger directory makes the bookie read-only. Off: the bookie becomes "
        "read-only when all are full; until then it refuses adds to ledgers in full ones.",
    )
    read_only_persisted: bool = Field(
        default=False,
        description="A bookie that was read-only because of full disks starts read-only, until its "
        "directories are below disk_low_water_share.",
    )
    read_only_forced: bool = Field(
        default=False, description="Refuse ordinary adds, for instance before a decommission."
    )

    journal_file_bytes_max: int = Field(
        default=32 << 20,
        ge=1 << 10,
        le=2 << 30,
        description="A new journal file begins at this size. A file is reused when all its entries "
        "are in entry logs: smaller files are reused sooner, while they are in the page cache.",
    )
    journal_spares: int = Field(
        default=4,
        ge=0,
        le=64,
        description="Old journal files kept for reuse. A sync of blocks that were written before "
        "costs a fraction of one that allocates them.",
    )
    journal_preallocate_bytes: int = Field(
        default=16 << 20,
        ge=0,
        le=1 << 30,
        description="Disk space is preallocated in steps of this size, which makes a sync two to "
        "five times as fast as with a growing file. Starts with the first add. 0: off.",
    )
    journal_group_wait_ms_max: float = Field(
        default=0,
        ge=0,
        le=1_000,
        description="How long the first add of a group may wait for others. 0: no wait; groups "
        "form while the previous sync runs, and a lone add is synced immediately.",
    )
    journal_group_bytes_max: int = Field(
        default=4 << 20,
        ge=1 << 10,
        le=256 << 20,
        description="A group is written at this size. This limits the bytes of one sync, and so "
        "the latency of the first add in the group.",
    )
    journal_group_entries_max: int = Field(
        default=65_536, ge=1, le=1 << 20, description="A group is written at this many entries."
    )
    journal_queue_bytes_max: int = Field(
        default=64 << 20,
        ge=1 << 10,
        le=4 << 30,
        description="Bytes of adds waiting for the journal; above it the bookie reads from no "
        "connection until half of them are written.",
    )
    journal_backups: int = Field(
        default=0,
        ge=0,
        le=1_000,
        description="Old journal files kept for inspection.",
    )

    flush_interval_s: float = Field(
        default=10.0,
        gt=0,
        le=3_600,
        description="Longest time between two flushes of the write cache to the entry logs. "
        "Flushes let the journal shrink even when little is written.",
    )
    flush_spread_s: float = Field(
        default=1.0,
        ge=0,
        le=60,
        description="A background flush is spread over this time, so that journal syncs on the "
        "same disk stay fast; less if the write cache fills. 0: no spreading.",
    )
    flush_retry_s: float = Field(
        default=1.0, gt=0, le=3_600, description="Delay before a failed flush is retried."
    )
    write_cache_bytes_max: int = Field(
        default=64 << 20,
        ge=64 << 10,
        le=16 << 30,
        description="Bytes of entries in memory that are in no entry log yet; half of it starts a "
        "flush. It bounds the journal that a restart has to replay.",
    )
    write_cache_full_wait_ms_max: int = Field(
        default=4_000,
        ge=0,
        le=60_000,
        description="How long an add waits for room in the write cache before it is refused. Below "
        "the request timeout of clients (5 s), so that they get the reason.",
    )
    ledger_descriptors_max: int = Field(
        default=100_000,
        ge=1,
        le=100_000_000,
        description="Ledgers whose fence, key and LAC are cached, about 500 bytes each; the "
        "bookie reads those of other ledgers from the index. Unflushed changes may exceed the "
        "limit.",
    )
    read_cache_bytes_max: int = Field(
        default=64 << 20,
        ge=0,
        le=64 << 30,
        description="Bytes of entries cached after a read from the entry logs.",
    )
    entry_log_bytes_max: int = Field(
        default=1 << 30, ge=64 << 10, le=1 << 30, description="Size of an entry log."
    )
    entry_log_ledgers_max: int = Field(
        default=100_000,
        ge=1,
        le=10_000_000,
        description="Ledgers in one entry log, about 130 bytes of memory each while it is written; "
        "above it the next log begins.",
    )
    index_page_bytes: int = Field(
        default=8192,
        ge=64,
        le=32 << 10,
        multiple_of=8,
        description="interleaved: page size of new page files. Existing files keep theirs.",
    )
    index_cache_bytes_max: int = Field(
        default=64 << 20,
        ge=0,
        le=64 << 30,
        description="interleaved: bytes of pages and headers in memory. A flush writes pages out "
        "early when unwritten ones take a quarter of it.",
    )
    index_open_files_max: int = Field(
        default=512,
        ge=1,
        le=100_000,
        description="interleaved: page files kept open for reading, in each ledger directory.",
    )

    gc_interval_s: float = Field(
        default=600.0,
        ge=0,
        description="Time between two rounds of garbage collection, each of which lists the "
        "ledgers of the cluster. 0: only when it is forced.",
    )
    gc_metadata_calls_per_s: float = Field(
        default=1000.0,
        ge=0,
        description="Metadata store calls per second of garbage collection. 0: no limit.",
    )
    gc_vanish_share_max: float = Field(
        default=0.5,
        gt=0,
        le=1,
        description="A round deletes nothing if the metadata store lacks more than this share of "
        "the bookie's ledgers: the metadata is then probably wrong. If the metadata store records "
        "deletions (embedded), the record of each ledger decides instead.",
    )
    gc_brake_ledgers_min: int = Field(
        default=100,
        ge=0,
        description="gc_vanish_share_max does not stop a round on a bookie with at most this many "
        "ledgers. If more than that share is missing there, a ledger must be missing for "
        "gc_vanish_patience_s before the bookie deletes it.",
    )
    gc_vanish_patience_s: float = Field(
        default=3600.0,
        ge=0,
        description="How long a ledger must be missing in the metadata before it is deleted, if "
        "more than gc_vanish_share_max of at most gc_brake_ledgers_min ledgers are missing. If the "
        "metadata store records deletions (embedded), the record decides instead.",
    )
    gc_over_replicated_interval_s: float = Field(
        default=86_400.0,
        ge=0,
        description="Time between two searches for stored ledgers that belong to other bookies "
        "now. 0: never.",
    )
    gc_minor_live_share: float = Field(
        default=0.2,
        ge=0,
        le=1,
        description="A minor compaction rewrites entry logs whose share of live bytes is below "
        "this. 0: no minor compaction.",
    )
    gc_minor_interval_s: float = Field(
        default=3_600.0,
        ge=0,
        description="Time between two minor compactions. 0: no minor compaction.",
    )
    gc_major_live_share: float = Field(
        default=0.8,
        ge=0,
        le=1,
        description="A major compaction rewrites entry logs whose share of live bytes is below "
        "this. 0: no major compaction.",
    )
    gc_major_interval_s: float = Field(
        default=86_400.0,
        ge=0,
        description="Time between two major compactions; each also counts as a minor one. 0: no "
        "major compaction.",
    )
    gc_compaction_bytes_per_s: float = Field(
        default=32 << 20,
        ge=0,
        description="Bytes per second that compaction writes. A higher value slows adds down. "
        "0: no limit.",
    )
    gc_compaction_run_s_max: float = Field(
        default=0.0,
        ge=0,
        description="Time after which a compaction begins no further entry log. 0: no limit.",
    )
    gc_compacts_when_full: bool = Field(
        default=False,
        description="Compact even if the disk is too full, or would be with the copies: compaction "
        "writes copies before it frees entry logs.",
    )
    gc_usage_bytes_max: int = Field(
        default=128 << 20,
        ge=0,
        le=16 << 30,
        description="Bytes of memory in which garbage collection tracks ledgers per entry log, 16 "
        "bytes each. Each round reads the rest again.",
    )
    tombstone_s: float = Field(
        default=7 * 86_400.0,
        ge=0,
        description="How long the bookie remembers a deleted ledger and refuses adds to it.",
    )
    tombstones_max: int = Field(
        default=200_000,
        ge=0,
        description="Deleted ledgers that the bookie remembers, about 130 bytes each; above it "
        "the bookie forgets the oldest.",
    )

    frame_bytes_max: int = Field(
        default=FRAME_BYTES_MAX,
        ge=1 << 10,
        le=FRAME_BYTES_MAX,
        description="Largest request frame in bytes; the bookie closes a connection that sends a "
        "larger one. Brokers whose largest message needs more do not use this bookie, and do not "
        "start if too few other bookies are left.",
    )
    connections_max: int = Field(
        default=10_000,
        ge=1,
        le=1_000_000,
        description="Open connections; further ones are closed immediately.",
    )
    connection_buffer_bytes_max: int = Field(
        default=4 << 20,
        ge=1 << 10,
        le=1 << 30,
        description="Unsent reply bytes of one connection; above it the bookie stops reading from "
        "the connection.",
    )
    connection_read_bytes_max: int = Field(
        default=16 << 20,
        ge=1 << 10,
        le=1 << 30,
        description="Reply bytes of one connection's disk reads in progress; above it the bookie "
        "stops reading from the connection.",
    )
    reads_bytes_max: int = Field(
        default=256 << 20,
        ge=1 << 10,
        le=64 << 30,
        description="Reply bytes of all disk reads in progress; above it the bookie reads from no "
        "connection.",
    )
    replies_bytes_max: int = Field(
        default=512 << 20,
        ge=1 << 10,
        le=64 << 30,
        description="Unsent reply bytes of all connections that are behind by "
        "connection_buffer_bytes_max; above it the next client that falls behind, or further "
        "behind, is disconnected.",
    )
    turn_bytes_max: int = Field(
        default=512 << 10,
        ge=16 << 10,
        le=1 << 30,
        description="Request bytes of all connections per turn of the event loop, plus 2 KiB per "
        "request, or 8 KiB if it is a read; the rest waits for later turns, in order.",
    )
    read_reply_bytes_max: int = Field(
        default=4 << 20,
        ge=1 << 10,
        le=FRAME_BYTES_MAX - (1 << 20),
        description="Largest reply to a range read, whatever the client asks for. A single larger "
        "entry is still returned.",
    )
    long_poll_ms_max: int = Field(
        default=30_000,
        ge=0,
        le=600_000,
        description="Longest wait of a long poll (READ_LAC), whatever the client asks for.",
    )
    long_polls_max: int = Field(
        default=100_000,
        ge=0,
        description="Waiting long polls, some hundred bytes each; further ones are refused.",
    )
    connection_long_polls_max: int = Field(
        default=10_000,
        ge=0,
        description="Waiting long polls of one connection; further ones are refused. A client "
        "uses one connection for all its ledgers.",
    )
    registration_wait_s: float = Field(
        default=30.0,
        ge=0,
        le=600,
        description="At startup, how long the bookie waits for its earlier registration to expire.",
    )
    drain_timeout_s: float = Field(
        default=20.0,
        ge=0,
        le=3_600,
        description="At SIGTERM, longest time to register as read-only and to flush memory before "
        "stopping. It usually takes a moment.",
    )
    stop_timeout_s: float = Field(
        default=60.0,
        gt=0,
        le=3_600,
        description="At SIGTERM, longest time until the process ends, the drain included. The next "
        "start replays from the journals what was not flushed.",
    )

    @model_validator(mode="after")
    def _check_relations(self) -> "BookieSettings":
        if self.port == 0 and not self.bookie_id:
            raise ValueError("port 0 needs a bookie_id, since the port can change at every start")
        if self.journal_group_bytes_max > self.journal_queue_bytes_max:
            raise ValueError("journal_group_bytes_max is above journal_queue_bytes_max")
        if self.gc_minor_live_share > self.gc_major_live_share > 0:
            raise ValueError("gc_minor_live_share is above gc_major_live_share")
        if self.disk_low_water_share_used > self.disk_full_share:
            raise ValueError("disk_low_water_share is above disk_full_share")
        if self.disk_warn_share > self.disk_full_share:
            raise ValueError("disk_warn_share is above disk_full_share")
        if self.drain_timeout_s > self.stop_timeout_s:
            raise ValueError("drain_timeout_s is above stop_timeout_s")
        directories = [*self.journal_directories, *self.ledger_directories]
        if len({each.absolute() for each in directories}) < len(directories):
            raise ValueError("a directory is named twice among the journal and ledger directories")
        return self

    @property
    def disk_low_water_share_used(self) -> float:
        low_water = self.disk_low_water_share
        return self.disk_full_share if low_water is None else low_water

    @property
    def recovery_add_free_bytes_used(self) -> int:
        free = self.recovery_add_free_bytes_min
        return self.entry_log_bytes_max * 6 // 5 if free is None else free

    @property
    def asks_for_proof(self) -> bool:
        """Whether clients must prove who they are, by the shared secret or a TLS certificate."""
        return self.has_tls or (bool(self.shared_secret_file) and not self.shared_secret_optional)

    @property
    def effective_bookie_id(self) -> str:
        return self.bookie_id or f"{self.effective_advertised_host}:{self.port}"

    @property
    def effective_advertised_host(self) -> str:
        return self.advertised_host or self.host
