"""How often topics are looked at for what is to be kept and what is to go."""

from pydantic import Field

from magnetar.broker.base.settings.section import Section


class KeepingSettings(Section):
    """A part of `BrokerSettings`. Each topic is looked at once per interval."""

    retention_check_interval_s: float = Field(
        default=120.0, ge=0, description="Time between two trimmings of a topic; 0 = never."
    )
    message_expiry_check_interval_s: float = Field(
        default=300.0, ge=0, description="Time between two searches for messages above their TTL."
    )
    backlog_quota_check_interval_s: float = Field(
        default=60.0,
        ge=0,
        description="Time between two checks of backlog quotas, for producers that are connected.",
    )
    subscription_expiry_check_interval_s: float = Field(
        default=300.0, ge=0, description="Time between two looks for unused subscriptions."
    )
    inactive_topic_check_interval_s: float = Field(
        default=60.0, ge=0, description="Time between two looks for unused topics; 0 = never."
    )
    backlog_analysis_entries_max: int = Field(
        default=10_000, ge=1, description="Entries that one look at what a backlog is reads."
    )
