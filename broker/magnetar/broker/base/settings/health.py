"""Settings of the health check."""

from pydantic import Field

from magnetar.broker.base.settings.section import Section


class HealthSettings(Section):
    """A part of `BrokerSettings`."""

    health_check_timeout_ms: int = Field(
        default=3_000,
        ge=1,
        description="A broker is not well if it cannot write and read a heartbeat within this "
        "long. Below the 4 s and 5 s that probes wait for the answer.",
    )
    health_check_interval_ms: int = Field(
        default=2_000,
        ge=0,
        description="Whoever asks within this long hears of the same heartbeat.",
    )
