"""Settings of durable cursors. The cores get plain values, not this class."""

from pydantic import BaseModel, ConfigDict, Field, model_validator


class CursorSettings(BaseModel):
    """Settings of how durable cursors are saved. Units are in the names."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    ensemble_size: int = Field(default=3, ge=1, description="Bookies of a cursor ledger.")
    write_quorum: int = Field(default=3, ge=1, description="Copies of each record.")
    ack_quorum: int = Field(
        default=2, ge=1, description="Copies that are durable before a record counts as saved."
    )
    password: bytes | None = Field(
        default=None,
        repr=False,
        description="Password of cursor ledgers. None: each cursor ledger has a random password.",
    )
    ack_persist_interval_ms: int = Field(
        default=1000,
        ge=0,
        le=600_000,
        description="A change is saved at most this long after it was made, plus the time of the "
        "write. After a crash, messages whose acknowledgement was not saved yet are delivered "
        "again. A shorter interval costs more writes per busy subscription.",
    )
    persist_retry_ms: int = Field(
        default=1000, ge=1, le=600_000, description="Delay before a failed save is retried."
    )
    unacked_ranges_persisted_max: int = Field(
        default=10_000,
        ge=1,
        le=200_000,
        description="Acknowledged ranges in a record. Above it the highest ranges are left out, "
        "and their messages are delivered again after a crash.",
    )
    batch_acks_persisted_max: int = Field(
        default=10_000,
        ge=0,
        le=200_000,
        description="Partly acknowledged batches in a record. Above it the highest batches are "
        "left out, and are delivered again after a crash.",
    )
    record_bytes_max: int = Field(
        default=5 << 20,
        ge=4096,
        le=5 << 20,
        description="Bytes of the largest record. One entry of the cursor ledger must hold the "
        "whole state.",
    )
    node_ranges_max: int = Field(
        default=1000,
        ge=0,
        le=10_000,
        description="Ranges and batches, together, that a cursor's metadata node holds. On a "
        "clean close, a larger state stays in the cursor ledger.",
    )
    node_bytes_max: int = Field(
        default=512 << 10,
        ge=4096,
        le=1000 << 10,
        description="Bytes of the largest value of a cursor's metadata node; ZooKeeper refuses "
        "values of 1 MiB.",
    )
    ledger_entries_max: int = Field(
        default=50_000, ge=1, description="A cursor ledger is replaced at this many records."
    )
    ledger_age_max_s: float = Field(
        default=14_400.0,
        gt=0,
        description="A cursor ledger older than this is replaced at the next save.",
    )

    @model_validator(mode="after")
    def _quorums_fit(self) -> "CursorSettings":
        if not self.ensemble_size >= self.write_quorum >= self.ack_quorum:
            raise ValueError(
                f"ensemble_size >= write_quorum >= ack_quorum is required, got "
                f"{self.ensemble_size}, {self.write_quorum}, {self.ack_quorum}"
            )
        return self
