"""The saved position of a scrubber, as a small file. Pure.

`scrub-position` in a ledger directory, JSON: see docs/formats/integrity.md. It is a hint: an
unreadable one begins a new pass, which is harmless.
"""

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from magnetar.bookie.integrity.sealed import open_sealed, seal

POSITION_NAME = "scrub-position"


class ScrubPosition(BaseModel):
    """The position of a pass: everything before it was read."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    format: int = Field(default=1, ge=1, le=1)
    pass_started_ms: int = Field(ge=0)
    """Wall clock time, in milliseconds."""
    ledger_id: int = Field(default=0, ge=0)
    entry_id: int = Field(default=0, ge=0)
    """Ledger and entry from which to continue."""
    bytes_done: int = Field(default=0, ge=0)
    is_done: bool = False
    """Whether the pass is complete; the next one begins when it is due."""

    def encode(self) -> bytes:
        return seal(self.model_dump_json().encode())


def decode_position(data: bytes) -> ScrubPosition | None:
    """Decode a position; None if it cannot be read."""
    text = open_sealed(data)
    if text is None:
        return None
    try:
        return ScrubPosition.model_validate_json(text)
    except ValidationError:
        return None


def due_in_s(position: ScrubPosition, *, total_bytes: int, now_ms: int, period_s: float) -> float:
    """Return the seconds until the next step; they spread a pass evenly over the period.

    Zero or less when the pass is behind, for instance after a power failure.
    """
    share = 1.0 if position.is_done else min(1.0, position.bytes_done / max(1, total_bytes))
    elapsed_s = (now_ms - position.pass_started_ms) / 1000
    if elapsed_s < 0:
        return 0.0  # the wall clock was set back
    return share * period_s - elapsed_s
