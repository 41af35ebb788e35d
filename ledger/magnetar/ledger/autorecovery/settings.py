"""Settings of the auditor. Plain values reach the cores; this class stays at the edge."""

from pydantic import BaseModel, ConfigDict, Field

DAY_S = 86_400.0


class AuditorSettings(BaseModel):
    """When the auditor believes a bookie to be lost, and how often it runs each check. Units are in
    the names."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    lost_bookie_recovery_delay_s: float = Field(
        default=0.0,
        ge=0,
        le=30 * DAY_S,
        description="A single bookie that is away counts as lost after this time: choose more than "
        "a restart takes. `magnetar admin recovery delay` overrides it. Several bookies that are "
        "away count as lost without delay.",
    )
    gather_s: float = Field(
        default=1.0,
        ge=0,
        le=600,
        description="Bookies that vanish within this time are audited together.",
    )
    settle_s: float = Field(
        default=15.0,
        ge=0,
        le=3600,
        description="A new auditor considers no bookie lost before it has led for this long: after "
        "an outage of the metadata store, bookies need some time to register again.",
    )
    mass_loss_share: float = Field(
        default=0.4,
        gt=0,
        le=1,
        description="If more than this share of the bookies vanishes within mass_loss_window_s, "
        "the auditor suspects the metadata store or the network (mass loss): it raises an alarm, "
        "waits, then publishes work items slowly.",
    )
    mass_loss_bookies_min: int = Field(
        default=2, ge=1, description="Fewer lost bookies never count as a mass loss."
    )
    mass_loss_window_s: float = Field(
        default=300.0,
        gt=0,
        le=DAY_S,
        description="Time in which lost bookies count towards mass_loss_share.",
    )
    mass_loss_wait_s: float = Field(
        default=30.0,
        ge=0,
        le=DAY_S,
        description="How long a mass loss must last before work items are published.",
    )
    mass_loss_items_per_s_max: float = Field(
        default=10.0,
        gt=0,
        le=10_000,
        description="Work items published per second during a mass loss, after mass_loss_wait_s.",
    )
    audit_again_s: float = Field(
        default=60.0,
        ge=0,
        le=DAY_S,
        description="Delay of another audit after one that found lost bookies: clients that did "
        "not know yet may have created ledgers on them. 0: none.",
    )
    retry_delay_s: float = Field(
        default=5.0, gt=0, le=3600, description="Delay before a failed audit or check is retried."
    )
    metadata_reads_per_s_max: float = Field(
        default=2_000.0,
        gt=0,
        le=1_000_000,
        description="Ledgers whose metadata an audit reads per second.",
    )
    metadata_reads_at_once_max: int = Field(
        default=64, ge=1, le=500, description="Ledgers whose metadata an audit reads in parallel."
    )
    publishes_at_once_max: int = Field(
        default=32, ge=1, le=500, description="Work items that are written in parallel."
    )
    bookie_check_interval_s: float = Field(
        default=DAY_S,
        ge=0,
        le=365 * DAY_S,
        description="How often all ledgers are searched for lost bookies even if none was seen to "
        "vanish. 0: never.",
    )
    all_ledgers_check_interval_s: float = Field(
        default=7 * DAY_S,
        ge=0,
        le=365 * DAY_S,
        description="How often the first and the last entry that each bookie should hold of each "
        "fragment are read. 0: never.",
    )
    all_ledgers_check_share: float = Field(
        default=0.0,
        ge=0,
        le=1,
        description="Share of the other entries that this check reads as well, drawn at random.",
    )
    placement_check_interval_s: float = Field(
        default=0.0,
        ge=0,
        le=365 * DAY_S,
        description="How often fragments are counted whose bookies share racks or zones. 0: never.",
    )
    replicas_check_interval_s: float = Field(
        default=DAY_S,
        ge=0,
        le=365 * DAY_S,
        description="How often bookies are asked which entries they have, which finds entries that "
        "stayed at the ack quorum. 0: never.",
    )
    first_check_delay_s: float = Field(
        default=60.0,
        ge=0,
        le=DAY_S,
        description="A check that is due when an auditor starts waits this long.",
    )
    check_ledgers_per_s_max: float = Field(
        default=200.0, gt=0, le=100_000, description="Ledgers that a check looks at per second."
    )
    check_ledgers_at_once_max: int = Field(
        default=16, ge=1, le=500, description="Ledgers that a check looks at in parallel."
    )
    check_ledger_timeout_s: float = Field(
        default=120.0,
        gt=0,
        le=3600,
        description="A ledger whose bookies do not answer by then is checked again later.",
    )
    second_look_delay_s: float = Field(
        default=30.0,
        ge=0,
        le=DAY_S,
        description="Ledgers that a check could not decide on are checked once more, this long "
        "after all others.",
    )
    second_looks_max: int = Field(
        default=10_000, ge=0, description="Ledgers that may wait for a second check."
    )
    survey_interval_s: float = Field(
        default=30.0,
        gt=0,
        le=DAY_S,
        description="How often work items are counted for the metrics.",
    )
    survey_items_max: int = Field(
        default=10_000,
        ge=1,
        description="Work items that are read for their age and size; further ones are only "
        "counted.",
    )
    overdue_item_age_s: float = Field(
        default=0.0,
        ge=0,
        le=365 * DAY_S,
        description="Work items older than this count as overdue. 0: never.",
    )
