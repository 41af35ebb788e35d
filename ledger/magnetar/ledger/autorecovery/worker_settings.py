"""Settings of the worker that re-replicates. Plain values reach the cores."""

from pydantic import BaseModel, ConfigDict, Field, model_validator


class WorkerSettings(BaseModel):
    """How fast missing copies are made, and when a ledger is tried again."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    ledgers_at_once: int = Field(
        default=8, ge=1, le=256, description="Ledgers that one worker repairs in parallel."
    )
    items_per_s_max: float = Field(
        default=200.0,
        gt=0,
        le=10_000,
        description="Work items that one worker takes per second. The limit protects the metadata "
        "store when many small ledgers need repair: each costs some ten requests.",
    )
    copy_bytes_per_s_max: int = Field(
        default=112 << 20,
        ge=0,
        description="Bytes per second that one worker writes to bookies; 0: no limit. Lower it "
        "when re-replication slows publishing too much.",
    )
    copy_bytes_in_flight_max: int = Field(
        default=8 << 20,
        ge=64 << 10,
        description="Bytes that one worker has requested and not yet stored, over all ledgers. In "
        "the bookies, adds of publishers wait behind them.",
    )
    copy_read_bytes: int = Field(
        default=1 << 20,
        ge=4096,
        le=4 << 20,
        description="Entries are copied in runs of about this many bytes, one read and one add "
        "each. Larger runs cost less CPU time. A larger entry is its own run.",
    )
    copy_attempts_max: int = Field(
        default=3,
        ge=1,
        le=100,
        description="Attempts to copy one run of entries before the worker postpones its fragment.",
    )
    copy_retry_delay_s: float = Field(
        default=0.5, gt=0, le=60, description="Delay between two attempts to copy a run of entries."
    )
    reads_per_ledger_max: int = Field(
        default=4, ge=1, le=64, description="Runs of one ledger that are copied in parallel."
    )
    list_bitmap_bytes: int = Field(
        default=16 << 10,
        ge=64,
        le=64 << 10,
        description="Bytes per page in which bookies list their entries, one bit per entry id.",
    )
    lost_entries_listed_max: int = Field(
        default=100,
        ge=1,
        description="Entries found on no bookie before the attempt to copy a fragment ends.",
    )
    open_ledger_grace_s: float = Field(
        default=30.0,
        ge=0,
        le=86_400,
        description="How long the writer of an open ledger may take to notice a lost bookie. "
        "After it the worker fences and closes the ledger, once there are enough bookies for a "
        "new one.",
    )
    retry_delay_s: float = Field(
        default=5.0,
        gt=0,
        le=3600,
        description="A ledger that could not be repaired is locked for this long; the delay "
        "doubles with each further failure, up to retry_doublings_max times.",
    )
    retry_doublings_max: int = Field(
        default=4,
        ge=0,
        le=20,
        description="Number of times that the delay doubles; after a further failure it is "
        "retry_delay_s_max.",
    )
    retry_delay_s_max: float = Field(
        default=300.0,
        gt=0,
        le=86_400,
        description="Longest delay before a ledger is repaired again. It also applies to ledgers "
        "with entries that no bookie has, because waiting alone does not help them.",
    )
    deferred_items_max: int = Field(
        default=10_000,
        ge=1,
        description="Failed ledgers whose locks one worker keeps during their delay; the locks of "
        "further ones are released immediately.",
    )
    rescan_s: float = Field(
        default=60.0,
        gt=0,
        le=3600,
        description="The worker lists all work items this often even if no watch fired.",
    )
    scan_pause_s: float = Field(
        default=0.2,
        gt=0,
        le=60,
        description="Shortest time between two listings of the work items. The worker waits ten "
        "times as long as the last listing took, if that is more.",
    )
    metadata_retries_max: int = Field(
        default=20,
        ge=1,
        description="Conflicts in a row before replacing an ensemble member gives up.",
    )
    stop_timeout_s: float = Field(
        default=10.0,
        ge=0,
        le=600,
        description="How long a stopping worker waits for its locks to be released.",
    )

    @model_validator(mode="after")
    def _delays_fit(self) -> "WorkerSettings":
        if self.retry_delay_s > self.retry_delay_s_max:
            raise ValueError(
                f"retry_delay_s {self.retry_delay_s} is above "
                f"retry_delay_s_max {self.retry_delay_s_max}"
            )
        if self.copy_read_bytes > self.copy_bytes_in_flight_max:
            raise ValueError(
                f"copy_read_bytes {self.copy_read_bytes} is above "
                f"copy_bytes_in_flight_max {self.copy_bytes_in_flight_max}"
            )
        return self
