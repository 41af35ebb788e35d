"""Settings of a bookie. They are frozen, and are handed on whole to the parts that read several."""

from pathlib import Path
from typing import Literal

from pydantic import ConfigDict, Field, model_validator

from magnetar.ledger.link_settings import LinkSettings
from magnetar.ledger.registration import DOMAIN_CHARACTERS_MAX
from magnetar.ledger.wire import FRAME_BYTES_MAX


class BookieSettings(LinkSettings):
    """How a bookie stores and serves. Units are in the names."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    data_directory: Path = Field(
        description="Where the journal, the ledgers, the cookie and the lock lie. One per bookie."
    )
    journal_directories: tuple[Path, ...] = Field(
        default=(),
        max_length=64,
        description="Directories of the journals, best one device each. A ledger's journal is "
        "chosen by its id. Empty: journal in the data directory.",
    )
    ledger_directories: tuple[Path, ...] = Field(
        default=(),
        max_length=64,
        description="Directories of the entry logs and indexes. A ledger's directory is chosen by "
        "its id: their number and order are part of the data. Empty: ledgers in the data "
        "directory.",
    )
    bookie_id: str = Field(
        default="",
        pattern=r"^([A-Za-z0-9.:-]{1,255})?$",
        description="Name of this bookie in ensembles, for its whole life. Empty: host and port.",
    )
    host: str = Field(
        default="127.0.0.1",
        min_length=1,
        description="Address to listen on. Others than loopback take a shared secret or TLS, or "
        "insecure.",
    )
    insecure: bool = Field(
        default=False,
        description="Whether a bookie without a shared secret and TLS may listen on other "
        "addresses than loopback: anybody who reaches it may then read and write every ledger.",
    )
    advertised_host: str = Field(
        default="", description="Address that clients are told to connect to. Empty: host."
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
        description="The rack, power feed or switch it shares with others: write sets are spread "
        "over racks. Empty: not known.",
    )
    zone: str = Field(
        default="",
        max_length=DOMAIN_CHARACTERS_MAX,
        description="The data centre or availability zone. Racks of one name in two zones are two "
        "racks. Empty: not known.",
    )
    storage_engine: Literal["db", "interleaved"] = Field(
        default="db",
        description="How the places of entries are kept: db, in RocksDB, for many ledgers and "
        "random reads; interleaved, in one file of pages per ledger. Part of the data.",
    )
    allow_storage_expansion: bool = Field(
        default=False,
        description="Journal and ledger directories may be added: empty ones, behind those that "
        "are known. What is stored stays where it is. Cannot be undone.",
    )
    integrity_stamp_missing_cookies: bool = Field(
        default=False,
        description="A bookie whose directories were lost may start with empty ones under its old "
        "id: what it held is fetched from the other bookies.",
    )
    integrity_fetch_bytes_max: int = Field(
        default=1 << 20,
        ge=1 << 10,
        le=FRAME_BYTES_MAX - (1 << 20),
        description="Packets that are fetched from another bookie and stored here at once.",
    )
    integrity_copy_bytes_per_s_max: int = Field(
        default=64 << 20,
        ge=1 << 10,
        description="How fast the check after a loss of data copies entries from other bookies.",
    )
    heal_ledgers_max: int = Field(
        default=10_000,
        ge=1,
        le=1_000_000,
        description="Ledgers with damage that waits to be healed; more is left for the scrubber to "
        "find again.",
    )
    heal_attempts_max: int = Field(
        default=5,
        ge=1,
        le=1_000,
        description="Attempts to heal damage before it is listed for repair; it goes on being "
        "tried.",
    )
    heal_retry_s: float = Field(
        default=1.0,
        gt=0,
        le=600,
        description="Delay before damage, or a ledger that lost entries, is tried again; it "
        "doubles with each failure, up to ten minutes.",
    )
    local_consistency_check: bool = Field(
        default=False,
        description="Read and check everything that is stored before serving. Takes as long as "
        "reading the disks does.",
    )
    scrub_period_days: float = Field(
        default=14.0,
        ge=0,
        le=3_650,
        description="Everything that is stored is read and checked once in this time, evenly "
        "spread. 0: never.",
    )
    scrub_bytes_per_s_max: int = Field(
        default=32 << 20,
        ge=1 << 10,
        description="How fast the scrubber reads when it is behind, per ledger directory.",
    )
    disk_check_interval_s: float = Field(
        default=10.0,
        gt=0,
        le=3_600,
        description="How often the directories are looked at: whether they are there, how full.",
    )
    disk_full_share: float = Field(
        default=0.95,
        gt=0,
        le=1,
        description="Used share of its file system at which a ledger directory is full: it takes "
        "no ordinary adds, and minor compaction stops.",
    )
    disk_warn_share: float = Field(
        default=0.90, gt=0, le=1, description="Used share at which major compaction stops."
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
        description="While the bookie is read-only for want of room, recovery adds are taken as "
        "long as every ledger directory has this much free. Unset: 1.2 entry logs.",
    )
    read_only_enabled: bool = Field(
        default=True,
        description="Whether a bookie whose disks are full goes on as read-only; else it ends.",
    )
    read_only_on_any_disk_full: bool = Field(
        default=True,
        description="One full ledger directory makes the bookie read-only. Off: only all of them "
        "do; before, adds of the ledgers in full ones are refused.",
    )
    read_only_persisted: bool = Field(
        default=False,
        description="A bookie that was read-only for want of room starts read-only, until its "
        "directories are below the low-water mark.",
    )
    read_only_forced: bool = Field(
        default=False, description="Take no ordinary adds, for instance before a decommission."
    )

    journal_file_bytes_max: int = Field(
        default=32 << 20,
        ge=1 << 10,
        le=2 << 30,
        description="A new journal file is begun at this size. A file can be written anew when all "
        "of it is in the entry logs: smaller files stay in the page cache and come round sooner.",
    )
    journal_spares: int = Field(
        default=4,
        ge=0,
        le=64,
        description="Journal files that are not needed any more and kept to be written anew. A "
        "sync of blocks that were written before costs a fraction of one that allocates them.",
    )
    journal_preallocate_bytes: int = Field(
        default=16 << 20,
        ge=0,
        le=1 << 30,
        description="Room on the disk is taken ahead in such steps, which makes a sync two to five "
        "times as fast as with a growing file. Taken with the first add, not when idle. 0: off.",
    )
    journal_group_wait_ms_max: float = Field(
        default=0,
        ge=0,
        le=1_000,
        description="How long the first add of a group may wait for others. 0: as soon as the disk "
        "is free; groups then form while the sync before them runs, and a lone add does not wait.",
    )
    journal_group_bytes_max: int = Field(
        default=4 << 20,
        ge=1 << 10,
        le=256 << 20,
        description="A group is written when it has this size. It bounds what one sync has to "
        "write and so the time until the first of the group is answered.",
    )
    journal_group_entries_max: int = Field(
        default=65_536, ge=1, le=1 << 20, description="A group is written at this many entries."
    )
    journal_queue_bytes_max: int = Field(
        default=64 << 20,
        ge=1 << 10,
        le=4 << 30,
        description="Adds waiting for the journal; beyond it no connection is read until half of "
        "them are written.",
    )
    journal_backups: int = Field(
        default=0,
        ge=0,
        le=1_000,
        description="Journal files to keep although they are not needed any more, to look into.",
    )

    flush_interval_s: float = Field(
        default=10.0,
        gt=0,
        le=3_600,
        description="What was added is written to the entry logs at least this often, so that the "
        "journal gets shorter also when little is written.",
    )
    flush_spread_s: float = Field(
        default=1.0,
        ge=0,
        le=60,
        description="A flush that nobody waits for is spread over this long, so that journals on "
        "the same disk are synced quickly beside it; less if the write cache fills. 0: at once.",
    )
    flush_retry_s: float = Field(
        default=1.0, gt=0, le=3_600, description="Wait after a failed flush before the next try."
    )
    write_cache_bytes_max: int = Field(
        default=64 << 20,
        ge=64 << 10,
        le=16 << 30,
        description="Entries in memory that are in no entry log yet; half of it starts a flush. "
        "It bounds the journal that a restart has to replay.",
    )
    write_cache_full_wait_ms_max: int = Field(
        default=4_000,
        ge=0,
        le=60_000,
        description="How long an add waits for room in the write cache before it is refused. Below "
        "the request timeout of clients (5 s), so that they hear the reason.",
    )
    ledger_descriptors_max: int = Field(
        default=100_000,
        ge=1,
        le=100_000_000,
        description="Ledgers in use whose fence, key and LAC are at hand, about 500 bytes each. Of "
        "the others they are looked up. Changes that are not flushed yet may make it more.",
    )
    read_cache_bytes_max: int = Field(
        default=64 << 20, ge=0, le=64 << 30, description="Entries read from the entry logs."
    )
    entry_log_bytes_max: int = Field(
        default=1 << 30, ge=64 << 10, le=1 << 30, description="Size of an entry log."
    )
    index_page_bytes: int = Field(
        default=8192,
        ge=64,
        le=32 << 10,
        multiple_of=8,
        description="interleaved: a page of a new page file. Files that exist keep theirs.",
    )
    index_cache_bytes_max: int = Field(
        default=64 << 20,
        ge=0,
        le=64 << 30,
        description="interleaved: pages and headers in memory. A quarter of it that is not written "
        "yet is written out in the middle of a flush.",
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
        description="Between two rounds of garbage collection: each lists the ledgers of the "
        "cluster. 0: only when it is forced.",
    )
    gc_metadata_calls_per_s: float = Field(
        default=1000.0,
        ge=0,
        description="Calls to the metadata store that garbage collection may make. 0: no bound.",
    )
    gc_vanish_share_max: float = Field(
        default=0.5,
        gt=0,
        le=1,
        description="A round deletes nothing when the metadata lacks more than this share of the "
        "ledgers here: the metadata is more likely to be wrong.",
    )
    gc_brake_ledgers_min: int = Field(
        default=100,
        ge=0,
        description="With no more ledgers than these the share says nothing; then ledgers must be "
        "missing for gc_vanish_patience_s.",
    )
    gc_vanish_patience_s: float = Field(
        default=3600.0,
        ge=0,
        description="How long a ledger must be missing in the metadata before it is deleted, if "
        "more than gc_vanish_share_max of at most gc_brake_ledgers_min ledgers are. Where the "
        "metadata records deletions (embedded), the record counts instead.",
    )
    gc_over_replicated_interval_s: float = Field(
        default=86_400.0,
        ge=0,
        description="Between two looks at all ledgers for those that other bookies have. 0: never.",
    )
    gc_minor_live_share: float = Field(
        default=0.2,
        ge=0,
        le=1,
        description="A minor compaction copies what lives of logs with a smaller live share. "
        "0: none.",
    )
    gc_minor_interval_s: float = Field(
        default=3_600.0, ge=0, description="Between two minor compactions. 0: none."
    )
    gc_major_live_share: float = Field(
        default=0.8, ge=0, le=1, description="The same for major compactions."
    )
    gc_major_interval_s: float = Field(
        default=86_400.0,
        ge=0,
        description="Between two major compactions; each also counts as a minor one. 0: none.",
    )
    gc_compaction_bytes_per_s: float = Field(
        default=32 << 20,
        ge=0,
        description="What compaction writes. More of it slows adds down. 0: no bound.",
    )
    gc_compaction_run_s_max: float = Field(
        default=0.0, ge=0, description="A compaction begins no further log after this. 0: no bound."
    )
    gc_compacts_when_full: bool = Field(
        default=False,
        description="Compact also while the disk is too full for it, or would be with the copies: "
        "they are written before anything is freed.",
    )
    gc_usage_bytes_max: int = Field(
        default=128 << 20,
        ge=0,
        le=16 << 30,
        description="Memory for what garbage collection knows of the entry logs; what does not fit "
        "is read again in each round. 16 bytes per ledger and log.",
    )
    tombstone_s: float = Field(
        default=7 * 86_400.0,
        ge=0,
        description="How long a deleted ledger refuses the adds of a writer that does not know.",
    )
    tombstones_max: int = Field(
        default=200_000,
        ge=0,
        description="Deleted ledgers that are remembered, about 130 bytes each; the oldest goes.",
    )

    frame_bytes_max: int = Field(
        default=FRAME_BYTES_MAX,
        ge=1 << 10,
        le=FRAME_BYTES_MAX,
        description="A larger request frame ends its connection. Brokers whose largest message "
        "needs more give the bookie no ledgers, and do not start if too few others are there.",
    )
    connections_max: int = Field(
        default=10_000, ge=1, le=1_000_000, description="Further connections are closed at once."
    )
    connection_buffer_bytes_max: int = Field(
        default=4 << 20,
        ge=1 << 10,
        le=1 << 30,
        description="Replies that a connection's client has not taken yet; beyond it the "
        "connection is not read.",
    )
    connection_read_bytes_max: int = Field(
        default=16 << 20,
        ge=1 << 10,
        le=1 << 30,
        description="Reply bytes that a connection's reads from disk under way have asked for; "
        "beyond it the connection is not read.",
    )
    reads_bytes_max: int = Field(
        default=256 << 20,
        ge=1 << 10,
        le=64 << 30,
        description="What the reads from disk under way of all connections have asked for; beyond "
        "it no connection is read.",
    )
    replies_bytes_max: int = Field(
        default=512 << 20,
        ge=1 << 10,
        le=64 << 30,
        description="Replies that the clients of all connections together have not taken; when it "
        "is used up, the next client that falls behind by connection_buffer_bytes_max is cut off.",
    )
    turn_bytes_max: int = Field(
        default=512 << 10,
        ge=16 << 10,
        le=1 << 30,
        description="What all connections together may bring in one turn of the event loop, each "
        "request counted with 2 KiB more, a read with 8; the rest waits for later turns, in order.",
    )
    read_reply_bytes_max: int = Field(
        default=4 << 20,
        ge=1 << 10,
        le=FRAME_BYTES_MAX - (1 << 20),
        description="Bound of a range read's reply, whatever the client asks for. One entry that "
        "is larger is returned all the same.",
    )
    long_poll_ms_max: int = Field(
        default=30_000,
        ge=0,
        le=600_000,
        description="A READ_LAC that waits for news is answered by then, whatever it asked for.",
    )
    long_polls_max: int = Field(
        default=100_000,
        ge=0,
        description="Requests that wait for news; further ones are refused. One takes some hundred "
        "bytes.",
    )
    connection_long_polls_max: int = Field(
        default=10_000,
        ge=0,
        description="The same for one connection, which one client has for all its ledgers.",
    )
    registration_wait_s: float = Field(
        default=30.0,
        ge=0,
        le=600,
        description="At start, how long to wait for an earlier registration to expire.",
    )
    drain_timeout_s: float = Field(
        default=20.0,
        ge=0,
        le=3_600,
        description="At SIGTERM, how long to be read-only before the end: until the registration "
        "says so, and what is in memory is flushed. Usually a moment.",
    )
    stop_timeout_s: float = Field(
        default=60.0,
        gt=0,
        le=3_600,
        description="At SIGTERM, when the process ends at the latest, the drain included. What is "
        "not flushed by then is in the journals, which the next start replays.",
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
        """Whether a stranger is turned away: by the shared secret, or for want of a certificate."""
        return self.has_tls or (bool(self.shared_secret_file) and not self.shared_secret_optional)

    @property
    def effective_bookie_id(self) -> str:
        return self.bookie_id or f"{self.effective_advertised_host}:{self.port}"

    @property
    def effective_advertised_host(self) -> str:
        return self.advertised_host or self.host
