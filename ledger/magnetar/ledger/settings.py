"""Settings of the ledger client and of a managed log. The cores get plain values instead."""

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from magnetar.ledger.link_settings import LinkSettings
from magnetar.ledger.wire import FRAME_BYTES_MAX

PACKET_OVERHEAD_BYTES = 64
"""Bytes of an entry in an ADD frame beside its payload: its header, digest and length."""
ADD_OVERHEAD_BYTES = 4 << 10
"""Bytes of an ADD frame beside the packets: its header, and keys of ledgers."""


class LedgerSettings(LinkSettings):
    """Settings of a ledger client. Units are in the names."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    ledger_creations_at_once: int = Field(
        default=128,
        ge=1,
        description="Ledgers created in parallel; others wait, so that the metadata store still "
        "answers other requests of this process.",
    )
    connect_timeout_s: float = Field(
        default=5.0, gt=0, le=60, description="Time to connect to a bookie."
    )
    request_timeout_s: float = Field(
        default=5.0,
        gt=0,
        le=120,
        description="Timeout of a request to a bookie; after it, the request counts as failed.",
    )
    reconnect_delay_s: float = Field(
        default=0.2,
        gt=0,
        le=60,
        description="After a failed connect, requests to that bookie fail immediately for this "
        "long.",
    )
    channel_bytes_max: int = Field(
        default=128 << 20,
        ge=1 << 20,
        description="Unanswered request bytes per bookie; above it the bookie counts as failed, so "
        "that one stuck bookie cannot fill the memory.",
    )
    add_frame_bytes_max: int = Field(
        default=1 << 20,
        ge=64 << 10,
        le=4 << 20,
        description="Adds of one event loop turn are sent together in frames of up to this many "
        "bytes. A larger entry gets its own frame.",
    )
    add_frame_entries_max: int = Field(
        default=4096, ge=1, le=1 << 16, description="Entries in one frame of adds."
    )
    entry_bytes_max: int = Field(
        default=(5 << 20) + (64 << 10),
        ge=1024,
        le=(7 << 20) + (64 << 10),
        description="Largest payload of an entry, in bytes: the largest message and its headers. "
        "Unless this is set, a broker raises it to message_bytes_max plus 64 KiB.",
    )
    pending_bytes_max: int = Field(
        default=256 << 20,
        ge=1 << 20,
        description="Unconfirmed bytes per ledger; appends above it are refused. Callers apply "
        "backpressure long before.",
    )
    ensemble_change_mode: Literal["eager", "delayed"] = Field(
        default="eager",
        description="When to replace a bookie that failed an add. eager: immediately; delayed: "
        "only if an entry cannot reach its ack quorum otherwise, or the bookie is read-only. "
        "delayed makes fewer fragments and leaves more entries under-replicated.",
    )
    ensemble_changes_max: int = Field(
        default=0,
        ge=0,
        description="Ensemble changes of one ledger; above it the writer fails. 0: no limit.",
    )
    ensemble_change_timeout_s: float = Field(
        default=30.0,
        gt=0,
        le=600,
        description="How long an ensemble change waits for the metadata store; after it the "
        "writer fails. Meanwhile the writer confirms nothing.",
    )
    metadata_retry_delay_s: float = Field(
        default=0.1, gt=0, le=60, description="Delay between two attempts of a metadata request."
    )
    metadata_retries_max: int = Field(
        default=100,
        ge=1,
        description="Conflicts and unknown outcomes in a row before a metadata update gives up.",
    )
    failed_member_rest_s: float = Field(
        default=1.0,
        ge=0,
        description="For this long, a bookie that failed an add gets no other place in that "
        "ledger's ensembles.",
    )
    quarantine_errors_max: int = Field(
        default=1,
        ge=1,
        description="Failures with an ensemble change within quarantine_interval_s that "
        "quarantine a bookie. New ensembles avoid a quarantined bookie while there are others.",
    )
    quarantine_interval_s: float = Field(
        default=60.0,
        gt=0,
        description="Time in which failures count towards quarantine_errors_max.",
    )
    quarantine_s: float = Field(
        default=60.0, ge=0, description="How long a quarantine lasts; 0 turns it off."
    )
    follow_up_time_s: float = Field(
        default=30.0,
        ge=0,
        description="Confirmed entries that a bookie lacks are sent to it again for this long; "
        "then they are published as under-replicated.",
    )
    follow_up_retry_delay_s: float = Field(
        default=1.0,
        gt=0,
        le=60,
        description="Delay between two attempts to send confirmed entries to a bookie that lacks "
        "them.",
    )
    follow_up_bytes_max: int = Field(
        default=32 << 20,
        ge=0,
        description="Bytes of confirmed entries that a client keeps because a bookie lacks them. "
        "Entries above it are published as under-replicated immediately.",
    )
    repair_publish_delay_s: float = Field(
        default=1.0,
        ge=0,
        le=60,
        description="Missing copies are collected for this long before they are published.",
    )
    repair_close_timeout_s: float = Field(
        default=5.0,
        ge=0,
        le=60,
        description="How long a closing client waits to publish missing copies.",
    )
    repair_ranges_max: int = Field(
        default=1000,
        ge=1,
        description="Ranges of missing entries per ledger and bookie; above it, ranges are joined.",
    )
    explicit_lac_interval_ms: float = Field(
        default=0.0,
        ge=0,
        le=60_000,
        description="A writer without new adds sends the last add confirmed (LAC) to the bookies "
        "after this time, for tailing readers. 0: never.",
    )
    recovery_window: int = Field(
        default=16,
        ge=1,
        le=1024,
        description="Entries of a striped ledger that recovery reads in parallel.",
    )
    close_drain_timeout_s: float = Field(
        default=10.0, gt=0, le=300, description="How long a close waits for pending adds."
    )
    close_idle_timeout_s: float = Field(
        default=1.0,
        ge=0,
        le=60,
        description="How long a closing client waits for outstanding answers.",
    )
    read_frame_bytes_max: int = Field(
        default=1 << 20, ge=4096, le=7 << 20, description="Bytes requested by one read request."
    )
    recovery_read_bytes_max: int = Field(
        default=1 << 20,
        ge=4096,
        le=7 << 20,
        description="Bytes requested by one recovery read request.",
    )
    bookie_failure_memory_s: float = Field(
        default=60.0,
        ge=0,
        description="For this long after a failed or slow read, readers ask that bookie last.",
    )
    reorder_reads: bool = Field(
        default=True,
        description="Whether readers ask near bookies first, and last those that are read-only, "
        "failed lately or are not registered. If false, they ask in the order of the write set.",
    )
    sticky_reads: bool = Field(
        default=True,
        description="If all bookies of a ledger have all entries (E = Qw), a reader keeps reading "
        "from one of them, whose read-ahead and page cache are warm. Different readers choose "
        "different bookies.",
    )
    speculative_read_ms: int = Field(
        default=2_000,
        ge=0,
        le=120_000,
        description="If a bookie has not answered a read within this time, the reader also asks "
        "the next bookie; the first good answer counts. 0: never.",
    )
    client_rack: str = Field(
        default="", description="This client's rack, as bookies name theirs. Empty: unknown."
    )
    client_zone: str = Field(
        default="", description="This client's zone, as bookies name theirs. Empty: unknown."
    )
    long_poll_first_ms: int = Field(
        default=1_500,
        ge=1,
        le=600_000,
        description="Wait of the first long poll of a tailing reader; it doubles after each poll "
        "without news.",
    )
    long_poll_ms_max: int = Field(
        default=5_000,
        ge=1,
        le=600_000,
        description="Longest wait of a long poll. At most 0.8 of request_timeout_s in any case, "
        "since a request without an answer by then counts as failed.",
    )
    long_poll_entries_bytes: int = Field(
        default=256 << 10,
        ge=0,
        le=4 << 20,
        description="Bytes of new entries that the answer to a long poll may carry, which saves a "
        "read. 0: none.",
    )
    follow_wait_s: float = Field(
        default=30.0,
        gt=0,
        le=3_600,
        description="Time between two checks, by a tailing reader, whether enough bookies answer.",
    )
    ledger_manager: Literal["hierarchical", "longhierarchical", "flat"] = Field(
        default="hierarchical",
        description="Layout of ledgers in the metadata store; the same for all clients of a "
        "cluster, forever. flat is deprecated: it is limited to some tens of thousands of ledgers.",
    )
    placement: Literal["random", "rack", "zone"] = Field(
        default="rack",
        description="How bookies are chosen for a ledger: at random, or so that every write set "
        "spans several racks or zones. Bookies without a rack count as one rack.",
    )
    placement_racks_min: int = Field(
        default=2,
        ge=1,
        description="Racks that every write set spans, at most the write quorum. 1: any.",
    )
    placement_zones_min: int = Field(
        default=2,
        ge=1,
        description="Zones that every write set spans with the zone placement, at most the write "
        "quorum.",
    )
    placement_enforced: bool = Field(
        default=False,
        description="If there are too few racks or zones: whether to refuse (true), or to spread "
        "a write set as far as possible and log it (false). If true, bookies without a rack or "
        "zone are not used.",
    )
    opportunistic_striping: bool = Field(
        default=False,
        description="A new ledger may have a smaller ensemble than requested, down to its write "
        "quorum, if there are too few bookies.",
    )

    @property
    def frame_bytes_needed(self) -> int:
        """Largest request, in bytes, that this client may send; every bookie must accept it."""
        headers = self.add_frame_entries_max * PACKET_OVERHEAD_BYTES
        largest = max(self.entry_bytes_max, self.add_frame_bytes_max + headers)
        return min(largest + ADD_OVERHEAD_BYTES, FRAME_BYTES_MAX)


class LogConfig(BaseModel):
    """Settings of the ledgers that a managed log writes; a change applies to the next ledger."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    ensemble_size: int = Field(default=3, ge=1)
    write_quorum: int = Field(default=3, ge=1)
    ack_quorum: int = Field(default=2, ge=1)
    ledger_entries_max: int = Field(
        default=50_000, ge=1, description="A ledger is full at this many entries."
    )
    ledger_bytes_max: int = Field(
        default=2048 << 20, ge=1, description="A ledger is full at this many payload bytes."
    )
    ledger_age_min_s: float = Field(
        default=600.0,
        ge=0,
        description="A ledger younger than this is not rolled over, even if it is full.",
    )
    ledger_age_max_s: float = Field(
        default=14_400.0,
        gt=0,
        description="A ledger older than this is rolled over at the next append.",
    )
    pending_bytes_max: int = Field(
        default=256 << 20,
        ge=1 << 20,
        description="Bytes of appends that wait for a confirmation or for the next ledger; above "
        "it appends are refused.",
    )
    opens_without_ledger: bool = Field(
        default=False,
        description="Whether to create the ledger at the first append instead of when the log is "
        "opened. Useful for many logs, few of which are written to.",
    )
    unused_ledger_s: float = Field(
        default=60.0,
        gt=0,
        description="A ledger that was created ahead of the first append is deleted if no append "
        "arrives within this time.",
    )
    overlaps_ledgers: bool = Field(
        default=True,
        description="Whether appends continue in the next ledger while earlier appends finish in "
        "the previous one. If false, they wait about a round trip for the earlier ones, and a "
        "takeover finds a prefix of the appends. Set it to false for an owner that judges by the "
        "last entry.",
    )
    unavailable_retry_s: float = Field(
        default=10.0,
        gt=0,
        description="After a ledger could not be created, appends fail immediately for this long.",
    )
    repair_timeout_s: float = Field(
        default=10.0,
        gt=0,
        description="How long appends wait while a broken ledger is recovered and replaced. Well "
        "below the 30 s after which clients give up a message, so that they get the reason.",
    )
    password: bytes | None = Field(
        default=None,
        repr=False,
        description="Password of the log's ledgers. None: each ledger has a random password, and "
        "everybody who may read the metadata can open the ledger.",
    )
    properties: dict[str, str] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _quorums_fit(self) -> "LogConfig":
        if not self.ensemble_size >= self.write_quorum >= self.ack_quorum:
            raise ValueError(
                f"ensemble_size >= write_quorum >= ack_quorum is required, got "
                f"{self.ensemble_size}, {self.write_quorum}, {self.ack_quorum}"
            )
        if self.ledger_age_min_s > self.ledger_age_max_s:
            raise ValueError(
                f"ledger_age_min_s {self.ledger_age_min_s} is above "
                f"ledger_age_max_s {self.ledger_age_max_s}"
            )
        return self


class ObjectReadSettings(BaseModel):
    """Settings for reading offloaded ledgers: limits of one process, and of each reader."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    object_index_cache_bytes: int = Field(
        default=64 << 20,
        ge=0,
        description="Bytes of memory for the indexes of the objects that were opened last. An "
        "object whose index is cached is opened without a request. The index of a 2 GiB ledger "
        "takes about 600 KB. 0: no cache.",
    )
    object_read_memory_bytes: int = Field(
        default=256 << 20,
        ge=0,
        description="Bytes of memory for the data that all readers of objects keep and fetch "
        "ahead. A reader without a share of it requests about 1 MiB for each read.",
    )
    object_read_window_bytes: int = Field(
        default=48 << 20,
        ge=0,
        description="Most bytes that one reader of an object fetches ahead of its consumer. 0: no "
        "read-ahead.",
    )
    object_read_range_bytes: int = Field(
        default=8 << 20,
        ge=1,
        le=1 << 30,
        description="Approximate bytes of one read request to an object store. Larger requests "
        "cost less per byte; several smaller ones in parallel are faster.",
    )
    object_read_ranges_max: int = Field(
        default=6,
        ge=1,
        le=64,
        description="Read requests that one reader of an object sends in parallel.",
    )
    object_reads_max: int = Field(
        default=32,
        ge=1,
        le=1024,
        description="Read requests to one object store in parallel; further ones wait.",
    )
    object_read_timeout_s: float = Field(
        default=30.0,
        gt=0,
        le=600,
        description="Timeout of a read request to an object store, including the wait for its "
        "turn; after it, the store counts as unavailable.",
    )
    object_read_idle_s: float = Field(
        default=10.0,
        ge=0,
        le=3_600,
        description="If object_read_memory_bytes is used up, readers that were not used for this "
        "long release their memory.",
    )

    @model_validator(mode="after")
    def _window_fits(self) -> "ObjectReadSettings":
        if self.object_read_window_bytes > self.object_read_memory_bytes:
            raise ValueError(
                f"object_read_window_bytes {self.object_read_window_bytes} is above "
                f"object_read_memory_bytes {self.object_read_memory_bytes}"
            )
        return self
