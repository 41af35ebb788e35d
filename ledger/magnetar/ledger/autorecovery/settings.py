"""Settings of the auditor. Plain values reach the cores; this class stays at the edge."""

from pydantic import BaseModel, ConfigDict, Field

DAY_S = 86_400.0


class AuditorSettings(BaseModel):
    """When lost bookies are believed to be lost, and what is checked how often. Units are in the
    names."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    lost_bookie_recovery_delay_s: float = Field(
        default=0.0,
        ge=0,
        le=30 * DAY_S,
        description="A single bookie that is away counts as lost after this long: choose more than "
        "a restart takes (rule 3.1). What an operator has written into the metadata store wins. "
        "Several bookies that are away are not waited for.",
    )
    gather_s: float = Field(
        default=1.0,
        ge=0,
        le=600,
        description="Bookies that vanish within this time are looked at together.",
    )
    settle_s: float = Field(
        default=15.0,
        ge=0,
        le=3600,
        description="A new auditor believes nothing before it has led for this long: after an "
        "outage of the metadata store, bookies need some time to register again.",
    )
    mass_loss_share: float = Field(
        default=0.4,
        gt=0,
        le=1,
        description="When more than this share of the bookies vanishes within mass_loss_window_s, "
        "the metadata store or the network is suspected (rule 3.2): publishing waits, then runs "
        "slowly, and there is an alarm.",
    )
    mass_loss_bookies_min: int = Field(
        default=2, ge=1, description="Fewer lost bookies are never taken for such a loss."
    )
    mass_loss_window_s: float = Field(
        default=300.0, gt=0, le=DAY_S, description="The time within which lost bookies count."
    )
    mass_loss_wait_s: float = Field(
        default=30.0,
        ge=0,
        le=DAY_S,
        description="How long such a loss must last before anything is published.",
    )
    mass_loss_items_per_s_max: float = Field(
        default=10.0, gt=0, le=10_000, description="Items published per second after that."
    )
    audit_again_s: float = Field(
        default=60.0,
        ge=0,
        le=DAY_S,
        description="After an audit that found lost bookies comes another one: ledgers may have "
        "been created on them by clients that did not know yet. 0: none.",
    )
    retry_delay_s: float = Field(
        default=5.0, gt=0, le=3600, description="After an audit or a check that failed."
    )
    metadata_reads_per_s_max: float = Field(
        default=2_000.0,
        gt=0,
        le=1_000_000,
        description="Ledgers whose metadata an audit reads per second (defect A12).",
    )
    metadata_reads_at_once_max: int = Field(
        default=64, ge=1, le=500, description="Of these, how many are under way at once."
    )
    publishes_at_once_max: int = Field(
        default=32, ge=1, le=500, description="Work items that are written side by side."
    )
    bookie_check_interval_s: float = Field(
        default=DAY_S,
        ge=0,
        le=365 * DAY_S,
        description="How often all ledgers are searched for lost bookies although none was seen "
        "to vanish. 0: never.",
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
        "stayed at the ack quorum (rule 4.1). 0: never.",
    )
    first_check_delay_s: float = Field(
        default=60.0,
        ge=0,
        le=DAY_S,
        description="A check that is due when an auditor begins waits for so long.",
    )
    check_ledgers_per_s_max: float = Field(
        default=200.0, gt=0, le=100_000, description="Ledgers that a check looks at per second."
    )
    check_ledgers_at_once_max: int = Field(
        default=16, ge=1, le=500, description="Of these, how many are under way at once."
    )
    check_ledger_timeout_s: float = Field(
        default=120.0,
        gt=0,
        le=3600,
        description="A ledger whose bookies do not answer by then is left for a second look.",
    )
    second_look_delay_s: float = Field(
        default=30.0,
        ge=0,
        le=DAY_S,
        description="Ledgers about which a check could not decide are looked at once more, so long "
        "after all others.",
    )
    second_looks_max: int = Field(
        default=10_000, ge=0, description="How many ledgers may wait for a second look."
    )
    survey_interval_s: float = Field(
        default=30.0,
        gt=0,
        le=DAY_S,
        description="How often the items are counted for the metrics.",
    )
    survey_items_max: int = Field(
        default=10_000,
        ge=1,
        description="Items that are read for their age and size; of more than these only the "
        "number is known.",
    )
    overdue_item_age_s: float = Field(
        default=0.0,
        ge=0,
        le=365 * DAY_S,
        description="Items older than this count as overdue. 0: none is.",
    )
