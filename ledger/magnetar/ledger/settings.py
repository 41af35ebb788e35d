"""Settings of the ledger client. Plain values reach the cores; this class stays at the edge."""

from pydantic import BaseModel, ConfigDict, Field, model_validator


class LedgerSettings(BaseModel):
    """How a ledger client talks to bookies. Units are in the names."""

    model_config = ConfigDict(frozen=True, extra="forbid")

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
        le=7 << 20,
        description="Largest payload of an entry: the largest message and its headers.",
    )
    pending_bytes_max: int = Field(
        default=256 << 20,
        ge=1 << 20,
        description="Unconfirmed bytes per ledger; an append beyond it is refused. Callers push "
        "back long before.",
    )
    close_drain_timeout_s: float = Field(
        default=10.0, gt=0, le=300, description="How long a close waits for pending adds."
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
        description="For this long after a failed read a bookie is asked last.",
    )


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
    password: bytes = b""
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
