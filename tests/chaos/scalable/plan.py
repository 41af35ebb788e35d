"""A run of the drill, and what is known while it goes on."""

from collections import Counter
from dataclasses import dataclass, field
from typing import Final

from tests.chaos.scalable.stalls import Change

BROKERS: Final = ("broker-1", "broker-2")
SEGMENTS: Final = 16
RATE: Final = 400.0
"""Messages/s of all producers, which a busy machine bears; 50,000 is what the topic is made for."""
SETTLE_S: Final = 600.0
LOOK_S: Final = 0.2


@dataclass(frozen=True, slots=True)
class Plan:
    """One run."""

    seed: int
    kills: int
    rate: float = RATE
    """Messages/s of all producers."""
    bookies: int = 1
    calm_cycles: int = 1
    """How often the topic grows and shrinks before the first broker is killed."""
    keys: int = 1_000
    producers: int = 2
    backlog_s_max: float = 10.0
    """Producers wait while consumers are further behind, at the rate that was asked for."""


@dataclass(slots=True)
class Progress:
    """What is known while it runs. Times are wall clock, as those of changes."""

    kills: Counter[str] = field(default_factory=Counter)
    churn: Counter[str] = field(default_factory=Counter)
    killed_ms: list[int] = field(default_factory=list)
    """When brokers died, and were there again."""
    cycles: int = 0
    """From one segment to the most, back to one, and to its sharing."""
    changes: dict[int, Change] = field(default_factory=dict)
    """By the times of their ends."""
    active: int = 0
    buckets: int = 0
    """The most entry buckets of a segment that takes messages."""
    shrinks: bool = False
    """Whether the topic is on its way to one segment."""
    ended: int = 0
    """Processes of clients that ended by themselves."""
    backlog_max: int = 0
    calm_s: tuple[float, float] = (0.0, 0.0)
    """When the time without kills began and ended; monotonic."""
    cores: dict[str, float] = field(default_factory=dict)
    """Seconds of processors per second, by kind of process, in the time without kills."""
