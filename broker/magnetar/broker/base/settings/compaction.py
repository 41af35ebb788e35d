"""Bounds of compaction."""

from pydantic import Field

from magnetar.broker.base.settings.topics import ReadSettings

_MIB = 1 << 20


class CompactionSettings(ReadSettings):
    """A part of `BrokerSettings`."""

    compaction_check_interval_s: float = Field(
        default=60.0,
        ge=0,
        description="Time between two looks at a topic's compaction threshold; 0 = never.",
    )
    compactions_at_once: int = Field(
        default=1, ge=1, description="Topics that a broker compacts side by side."
    )
    compaction_keys_bytes_max: int = Field(
        default=256 * _MIB,
        ge=1,
        description="Memory for the keys of one compaction; a topic with more keys is not "
        "compacted, and its status says so.",
    )
    compaction_batch_bytes_max: int = Field(
        default=64 * _MIB,
        ge=1,
        description="Batches that are larger, uncompressed, are kept whole.",
    )
    compaction_bytes_per_s: int = Field(
        default=32 * _MIB,
        ge=0,
        description="Speed at which a pass of a compaction reads; 0 = no bound.",
    )
    compaction_retains_keyless: bool = Field(
        default=False, description="Whether messages without a key survive a compaction."
    )
