"""Settings of splits and merges by load: the thresholds at which segments change.

The defaults are Pulsar's. Namespaces and topics override most of them by a policy.
"""

from typing import Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

RATES = ("msg_rate_in", "msg_rate_out", "bytes_rate_in", "bytes_rate_out")
"""Rates of a segment that decide: published and delivered messages and bytes per second."""

MERGED_SHARE = 2
"""Least ratio of a split threshold to its merge threshold. Two segments below the latter then make
one that is not above the former."""


class ScalingSettings(BaseModel):
    """When scalable topics are split and merged automatically."""

    model_config = ConfigDict(frozen=True)

    scalable_auto_scale: bool = Field(
        default=True,
        description="Whether segments of scalable topics are split and merged automatically, by "
        "their load. Policies of namespaces and topics override it.",
    )
    scalable_auto_scale_interval_s: float = Field(
        default=60.0,
        ge=0.05,
        le=3_600,
        description="Time between two checks of the load of the scalable topics whose names this "
        "broker owns. Each check makes at most one split or merge per topic.",
    )
    scalable_segments_min: int = Field(
        default=1,
        ge=1,
        le=65_536,
        description="Automatic merges never reduce a scalable topic to fewer segments than this.",
    )
    scalable_layout_depth_max: int = Field(
        default=10,
        ge=1,
        le=10_000,
        description="Generations of segments in a topic's layout at which automatic merges stop, "
        "because each merge adds one. Sealed segments that were deleted do not count.",
    )
    scalable_split_msg_rate_in: float = Field(
        default=10_000.0,
        gt=0,
        description="Published messages per second above which a segment is split.",
    )
    scalable_split_msg_rate_out: float = Field(
        default=50_000.0,
        gt=0,
        description="Delivered messages per second above which a segment is split.",
    )
    scalable_split_bytes_rate_in: float = Field(
        default=50e6, gt=0, description="Published bytes per second above which a segment is split."
    )
    scalable_split_bytes_rate_out: float = Field(
        default=250e6,
        gt=0,
        description="Delivered bytes per second above which a segment is split.",
    )
    scalable_merge_msg_rate_in: float = Field(
        default=1_000.0,
        ge=0,
        description="Published messages per second below which neighbouring segments are merged. "
        "Two neighbours are merged if they are below all four scalable_merge_* rates for "
        "scalable_merge_window_s. Each of these is at most half of its scalable_split_* rate, so "
        "that no merge is followed by a split at the same load.",
    )
    scalable_merge_msg_rate_out: float = Field(
        default=5_000.0,
        ge=0,
        description="Delivered messages per second below which neighbouring segments are merged.",
    )
    scalable_merge_bytes_rate_in: float = Field(
        default=5e6,
        ge=0,
        description="Published bytes per second below which neighbouring segments are merged.",
    )
    scalable_merge_bytes_rate_out: float = Field(
        default=25e6,
        ge=0,
        description="Delivered bytes per second below which neighbouring segments are merged.",
    )
    scalable_consumers_split_msg_rate_in: float = Field(
        default=1_000.0,
        gt=0,
        description="Published messages per second above which the busiest segment is split if a "
        "subscription has more stream consumers than the topic has segments.",
    )
    scalable_split_cooldown_s: float = Field(
        default=60.0,
        ge=0,
        le=86_400,
        description="Time after a split or merge of a topic before its segments are split "
        "automatically again.",
    )
    scalable_merge_cooldown_s: float = Field(
        default=300.0,
        ge=0,
        le=86_400,
        description="Time after a split or merge of a topic before its segments are merged "
        "automatically again.",
    )
    scalable_rebucket_cooldown_s: float = Field(
        default=60.0,
        ge=0,
        le=86_400,
        description="Time after any change of a topic's segments before a segment gets entry "
        "buckets automatically. It gets them if a subscription has more stream consumers than the "
        "topic has segments.",
    )
    scalable_merge_window_s: float = Field(
        default=300.0,
        ge=0,
        le=86_400,
        description="How long two neighbouring segments must be below the scalable_merge_* rates "
        "before they are merged.",
    )

    @model_validator(mode="after")
    def _thresholds_fit(self) -> Self:
        for rate in RATES:
            split = getattr(self, f"scalable_split_{rate}")
            merge = getattr(self, f"scalable_merge_{rate}")
            if merge * MERGED_SHARE > split:
                raise ValueError(
                    f"scalable_merge_{rate} must be at most half of scalable_split_{rate}, got "
                    f"{merge} and {split}: what is merged would be split again"
                )
        return self
