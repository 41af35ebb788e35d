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
        description="A single bookie that is not registered counts as lost after this time; "
        "choose more than a restart takes. `magnetar admin recovery delay` overrides it. Several "
        "unregistered bookies count as lost without delay.",
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
        description="A new auditor considers no bookie lost before it has been the auditor for "
        "this long: after an outage of the metadata store, bookies need some time to register "
        "again.",
    )
    mass_loss_share: float = Field(
        default=0.4,
        gt=0,
        le=1,
        description="If more than this share of the bookies vanishes within mass_loss_window_s, "
        "the auditor suspects the metadata store or the network (mass loss): it raises an alarm, "
        "waits for mass_loss_wait_s, then publishes work items slowly.",
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
        description="Work items published per second during a mass loss, after mass_loss_wait_s. "
        "A mass loss lasts until so many of its bookies are back, or decommissioned, that the rest "
        "is no more than mass_loss_share. Bookies that were away before the auditor started count "
        "for six hours.",
    )
    audit_again_s: float = Field(
        default=60.0,
        ge=0,
        le=DAY_S,
        description="Delay before another audit follows one that found lost bookies: clients that "
        "did not know of the loss may have created ledgers on these bookies. 0: no further audit.",
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
        default=32, ge=1, le=500, description="Work items that an audit writes in parallel."
    )
    bookie_check_interval_s: float = Field(
        default=DAY_S,
        ge=0,
        le=365 * DAY_S,
        description="Time between two searches of all ledgers for lost bookies, even if no bookie "
        "was seen to vanish. 0: never.",
    )
    all_ledgers_check_interval_s: float = Field(
        default=7 * DAY_S,
        ge=0,
        le=365 * DAY_S,
        description="Time between two checks that read the first and the last entry that each "
        "bookie should hold of each fragment. 0: never.",
    )
    all_ledgers_check_share: float = Field(
        default=0.0,
        ge=0,
        le=1,
        description="Share of the other entries that the check of all_ledgers_check_interval_s "
        "reads as well, chosen at random.",
    )
    placement_check_interval_s: float = Field(
        default=0.0,
        ge=0,
        le=365 * DAY_S,
        description="Time between two checks that count fragments whose bookies share racks or "
        "zones. 0: never.",
    )
    replicas_check_interval_s: float = Field(
        default=DAY_S,
        ge=0,
        le=365 * DAY_S,
        description="Time between two checks that ask bookies which entries they have. The check "
        "finds entries that stayed at the ack quorum. 0: never.",
    )
    first_check_delay_s: float = Field(
        default=60.0,
        ge=0,
        le=DAY_S,
        description="A check that is due when an auditor starts waits this long.",
    )
    check_ledgers_per_s_max: float = Field(
        default=200.0, gt=0, le=100_000, description="Ledgers that a check examines per second."
    )
    check_ledgers_at_once_max: int = Field(
        default=16, ge=1, le=500, description="Ledgers that a check examines in parallel."
    )
    check_ledger_timeout_s: float = Field(
        default=120.0,
        gt=0,
        le=3600,
        description="A ledger whose bookies do not answer within this time is checked again later.",
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
        description="Time between two counts of the work items for the metrics.",
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
