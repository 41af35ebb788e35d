"""How often topics at rest are looked at, and how much that may cost."""

from pydantic import Field

from magnetar.broker.base.settings.section import Section


class AtRestSettings(Section):
    """A part of `BrokerSettings`."""

    topics_at_rest_interval_s: float = Field(
        default=600.0,
        ge=0,
        description="Time between two walks over the stored topics that nobody uses; 0 = never. "
        "They are trimmed, expired and deleted by the same policies as topics in use.",
    )
    topics_at_rest_reads_per_s: float = Field(
        default=100.0,
        gt=0,
        description="Reads of the metadata store per second that a walk makes. A topic takes two, "
        "and one for each of its subscriptions: 100,000 topics with one each take 50 minutes.",
    )
    topics_at_rest_loaded_max: int = Field(
        default=4,
        ge=1,
        description="Topics at rest that are loaded at once, because something is due in them.",
    )
    topics_at_rest_remembered_max: int = Field(
        default=10_000,
        ge=1,
        description="Topics that came to rest here of which the time is remembered. Beyond it, the "
        "disuse of older ones counts from the latest time that was forgotten.",
    )
