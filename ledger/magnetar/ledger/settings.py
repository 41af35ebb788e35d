"""Settings of the ledger client. Plain values reach the cores; this class stays at the edge."""

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from magnetar.ledger.link_settings import LinkSettings
from magnetar.ledger.wire import FRAME_BYTES_MAX

PACKET_OVERHEAD_BYTES = 64
"""What an entry takes in an ADD frame besides its payload: its header, digest and length."""
ADD_OVERHEAD_BYTES = 4 << 10
"""What an ADD frame holds besides packets: its header, and keys of ledgers."""


class LedgerSettings(LinkSettings):
    """How a ledger client talks to bookies. Units are in the names."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    ledger_creations_at_once: int = Field(
        default=128,
        ge=1,
        description="Ledgers that are being created; others wait their turn, so that the metadata "
        "store still answers what else this process asks.",
    )
    connect_timeout_s: float = Field(
        default=5.0, gt=0, le=60, description="Time to connect to a bookie."
    )
    request_timeout_s: float = Field(
        default=5.0,
        gt=0,
        le=120,
        description="A bookie that has not answered a request by then counts as failed for it.",
    )
    reconnect_delay_s: float = Field(
        default=0.2,
        gt=0,
        le=60,
        description="After a failed connect, requests to that bookie fail at once for this long.",
    )
    channel_bytes_max: int = Field(
        default=128 << 20,
        ge=1 << 20,
        description="Unanswered request bytes per bookie; beyond it the bookie counts as failed, "
        "so that one stuck bookie cannot fill the memory (rule 4.6).",
    )
    add_frame_bytes_max: int = Field(
        default=1 << 20,
        ge=64 << 10,
        le=4 << 20,
        description="Adds of one loop turn travel together in frames up to this size. One entry "
        "larger than this has a frame of its own.",
    )
    add_frame_entries_max: int = Field(
        default=4096, ge=1, le=1 << 16, description="Entries in one such frame."
    )
    entry_bytes_max: int = Field(
        default=(5 << 20) + (64 << 10),
        ge=1024,
        le=(7 << 20) + (64 << 10),
        description="Largest payload of an entry: the largest message and its headers. A broker's "
        "is at least its message_bytes_max and 64 KiB, unless this is set.",
    )
    pending_bytes_max: int = Field(
        default=256 << 20,
        ge=1 << 20,
        description="Unconfirmed bytes per ledger; an append beyond it is refused. Callers push "
        "back long before.",
    )
    ensemble_change_mode: Literal["eager", "delayed"] = Field(
        default="eager",
        description="When a bookie fails an add: replace it at once, or only when an entry could "
        "not reach its ack quorum otherwise, or the bookie is read-only. Delayed makes fewer "
        "fragments and leaves more entries under-replicated.",
    )
    ensemble_changes_max: int = Field(
        default=0,
        ge=0,
        description="Ensemble changes of one ledger; beyond it the handle fails. 0: no bound.",
    )
    ensemble_change_timeout_s: float = Field(
        default=30.0,
        gt=0,
        le=600,
        description="How long an ensemble change waits for the metadata store. Nothing is "
        "confirmed meanwhile; then the handle fails.",
    )
    metadata_retry_delay_s: float = Field(
        default=0.1, gt=0, le=60, description="Between two tries of a metadata request."
    )
    metadata_retries_max: int = Field(
        default=100,
        ge=1,
        description="Conflicts and unknown outcomes in a row before a metadata update gives up.",
    )
    failed_member_rest_s: float = Field(
        default=1.0,
        ge=0,
        description="A bookie that failed an add takes no other place in that ledger's ensembles "
        "for so long.",
    )
    quarantine_errors_max: int = Field(
        default=1,
        ge=1,
        description="So many failures that cost an ensemble change, within "
        "quarantine_interval_s, keep a bookie out of new ensembles while there are others.",
    )
    quarantine_interval_s: float = Field(
        default=60.0, gt=0, description="The time within which these failures count."
    )
    quarantine_s: float = Field(
        default=60.0, ge=0, description="How long a quarantine lasts; 0 turns it off."
    )
    follow_up_time_s: float = Field(
        default=30.0,
        ge=0,
        description="Entries that were confirmed while a bookie lacked them are sent to it again "
        "for this long; then they are published as under-replicated (rule 4.5).",
    )
    follow_up_retry_delay_s: float = Field(
        default=1.0, gt=0, le=60, description="Between two such tries."
    )
    follow_up_bytes_max: int = Field(
        default=32 << 20,
        ge=0,
        description="Bytes kept for these tries by one client; beyond it the entries are "
        "published as under-replicated at once.",
    )
    repair_publish_delay_s: float = Field(
        default=1.0,
        ge=0,
        le=60,
        description="Missing copies are collected for this long before they are published.",
    )
    repair_close_timeout_s: float = Field(
        default=5.0, ge=0, le=60, description="How long a closing client waits to publish them."
    )
    repair_ranges_max: int = Field(
        default=1000,
        ge=1,
        description="Ranges of missing entries per ledger and bookie; more are joined into one.",
    )
    explicit_lac_interval_ms: float = Field(
        default=0.0,
        ge=0,
        le=60_000,
        description="So long after an add was confirmed, and no other was sent that would tell, "
        "the writer tells the bookies the last add confirmed, for readers that follow. 0: never.",
    )
    recovery_window: int = Field(
        default=16,
        ge=1,
        le=1024,
        description="Recovery reads of a striped ledger that are under way at once.",
    )
    close_drain_timeout_s: float = Field(
        default=10.0, gt=0, le=300, description="How long a close waits for pending adds."
    )
    close_idle_timeout_s: float = Field(
        default=1.0,
        ge=0,
        le=60,
        description="How long a closing client waits for answers that are outstanding.",
    )
    read_frame_bytes_max: int = Field(
        default=1 << 20, ge=4096, le=7 << 20, description="Bytes asked for in one read request."
    )
    recovery_read_bytes_max: int = Field(
        default=1 << 20, ge=4096, le=7 << 20, description="Bytes per recovery read request."
    )
    bookie_failure_memory_s: float = Field(
        default=60.0,
        ge=0,
        description="For this long after a failed or slow read a bookie is asked last.",
    )
    reorder_reads: bool = Field(
        default=True,
        description="Ask near bookies first, and last those that are read-only, failed lately or "
        "are not registered. Off: in the order of the write set.",
    )
    sticky_reads: bool = Field(
        default=True,
        description="Where all bookies of a ledger have all entries (E = Qw), a handle reads from "
        "one of them while it can: its read-ahead and its page cache are warm. Handles differ.",
    )
    speculative_read_ms: int = Field(
        default=2_000,
        ge=0,
        le=120_000,
        description="A bookie that has not answered a read by then stays in the race, and the next "
        "one is asked too. 0: never.",
    )
    client_rack: str = Field(
        default="", description="This client's rack, as bookies name theirs. Empty: not known."
    )
    client_zone: str = Field(
        default="", description="This client's zone, as bookies name theirs. Empty: not known."
    )
    long_poll_first_ms: int = Field(
        default=1_500,
        ge=1,
        le=600_000,
        description="Who follows a ledger asks bookies to wait so long for news at first; after "
        "nothing new twice as long, and so on.",
    )
    long_poll_ms_max: int = Field(
        default=5_000,
        ge=1,
        le=600_000,
        description="The longest such wait. At most 0.8 of request_timeout_s in any case, since a "
        "request without an answer by then counts as failed.",
    )
    long_poll_entries_bytes: int = Field(
        default=256 << 10,
        ge=0,
        le=4 << 20,
        description="Bytes of new entries that the answer to such a request may bring along, which "
        "saves the read. 0: none.",
    )
    follow_wait_s: float = Field(
        default=30.0,
        gt=0,
        le=3_600,
        description="Who follows a ledger makes sure this often that enough bookies answer.",
    )
    ledger_manager: Literal["hierarchical", "longhierarchical", "flat"] = Field(
        default="hierarchical",
        description="Where the metadata store keeps ledgers; the same for all clients of a "
        "cluster, for ever. flat is deprecated: it ends at some tens of thousands of ledgers.",
    )
    placement: Literal["random", "rack", "zone"] = Field(
        default="rack",
        description="Which bookies a ledger takes: any, or such that every write set spans "
        "several racks or zones. Where bookies do not say their rack, all count as one.",
    )
    placement_racks_min: int = Field(
        default=2,
        ge=1,
        description="Racks that every write set spans; the write quorum caps it. 1: any.",
    )
    placement_zones_min: int = Field(
        default=2,
        ge=1,
        description="Zones that every write set spans with the zone placement; the write quorum "
        "caps it.",
    )
    placement_enforced: bool = Field(
        default=False,
        description="When racks or zones are short: refuse (true), or spread as far as possible "
        "and log it (false). Bookies that do not say theirs are not used when it is enforced.",
    )
    opportunistic_striping: bool = Field(
        default=False,
        description="A new ledger may have a smaller ensemble than asked for, down to its write "
        "quorum, when bookies are short.",
    )

    @property
    def frame_bytes_needed(self) -> int:
        """A bookie that takes no request of this size refuses what this client may store."""
        headers = self.add_frame_entries_max * PACKET_OVERHEAD_BYTES
        largest = max(self.entry_bytes_max, self.add_frame_bytes_max + headers)
        return min(largest + ADD_OVERHEAD_BYTES, FRAME_BYTES_MAX)


class LogConfig(BaseModel):
    """How a managed log writes its ledgers; applied when the next ledger is created."""

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
        default=600.0, ge=0, description="A younger ledger is not rolled, however full it is."
    )
    ledger_age_max_s: float = Field(
        default=14_400.0, gt=0, description="An older ledger is rolled at the next append."
    )
    pending_bytes_max: int = Field(
        default=256 << 20,
        ge=1 << 20,
        description="Appends that wait for a confirmation or for the next ledger; beyond it they "
        "are refused.",
    )
    opens_without_ledger: bool = Field(
        default=False,
        description="Whoever opens the log creates its ledger with the first append, not before: "
        "for many logs of which few are written to.",
    )
    unused_ledger_s: float = Field(
        default=60.0,
        gt=0,
        description="A ledger that was created ahead of the first append is deleted when none came "
        "for so long.",
    )
    overlaps_ledgers: bool = Field(
        default=True,
        description="Appends go on in the next ledger while those before them finish in the one "
        "before. Without it they wait for these, for about a round trip, and what a takeover finds "
        "is a prefix of the appends: who tells by the last entry which ones are there needs that.",
    )
    unavailable_retry_s: float = Field(
        default=10.0,
        gt=0,
        description="After a ledger could not be created, appends fail at once for this long.",
    )
    repair_timeout_s: float = Field(
        default=10.0,
        gt=0,
        description="How long appends wait while a broken ledger is recovered and replaced. Well "
        "below the 30 s after which clients give up a message, so that they hear the reason.",
    )
    password: bytes | None = Field(
        default=None,
        repr=False,
        description="Of the log's ledgers. None: each has a random one of its own, and whoever may "
        "read the metadata opens them.",
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
