"""What WebSocket sessions are and have carried, for those who show it. Pure values."""

from dataclasses import dataclass, field


@dataclass(slots=True)
class Traffic:
    """What went through one session since it began."""

    messages: int = 0
    payload_bytes: int = 0


@dataclass(frozen=True, slots=True)
class SessionStats:
    """One session now."""

    topics: tuple[str, ...]
    """Full names, partitions by their topic; of a pattern, those it has found."""
    namespaces: tuple[str, ...]
    is_producer: bool
    subscription: str
    subscription_type: str
    remote: str
    age_s: float
    traffic: Traffic = field(default_factory=Traffic)
