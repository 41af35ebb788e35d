"""The plan of a random run of a scalable topic: everything that will happen, known beforehand.

Plain data, so that a failing one can be made shorter and kept as a file, as those of clusters
(`tests/simulation/cluster/plan.py`).
"""

import json
from dataclasses import asdict, dataclass, replace

from tests.simulation.plan import Step

TOPIC = "persistent://public/default/t"
"""Name of the topic by which brokers know it."""
SCALABLE = "topic://public/default/t"
"""Name of the topic by which clients of Pulsar 5 know it."""

STREAM, QUEUE, LATE = "s", "q", "l"
"""Subscriptions: of stream consumers; of queue consumers; of a queue consumer that comes later, and
begins with what is published from then on."""


@dataclass(frozen=True, slots=True)
class ScalablePlan:
    """Everything about a run. A field that is added needs a default, for the files that lack it.

    A step is about a broker "br1", the owner of an active segment just then, "^0", or the broker
    that divides the segments among the stream consumers, "^c".
    """

    seed: int
    brokers: int
    segments: int
    """Of the topic when it is created."""
    producers: int
    keys: int
    messages: int
    """Messages of each producer."""
    think_s: float
    streams: int
    """Stream consumers in the beginning."""
    queues: int
    """Queue consumers; 0: the topic has no such subscription."""
    has_reader: bool
    """Whether a checkpoint consumer reads."""
    ack_share: float
    """Share of the messages that a stream consumer acknowledges at once; the others with a later
    one."""
    ledger_entries: int
    net_jitter_s: float
    front_jitter_s: float
    store_jitter_s: float
    watch_jitter_s: float
    keeps_frames: bool
    ack_persist_ms: int
    patience_ms: int
    """After which a change that stands still is carried on."""
    grace_ms: int
    """Of consumers whose connection is lost."""
    prunes: bool
    """Whether sealed segments are pruned all the time."""
    keeps_min: int
    """How long acknowledged messages are kept, in minutes."""
    is_calm: bool
    """Nothing goes wrong; what is done is done in order."""
    steps: tuple[Step, ...]
    entry_buckets: int = 1
    """Of the topic when it is created: `scalable_entry_buckets` of the brokers."""

    def to_json(self) -> str:
        return json.dumps(asdict(self), indent=1) + "\n"

    @classmethod
    def from_json(cls, text: str) -> "ScalablePlan":
        value = json.loads(text)
        value["steps"] = tuple(Step(*step) for step in value["steps"])
        return cls(**value)

    def without(self, *dropped: int) -> "ScalablePlan":
        """The plan without some of its steps."""
        steps = tuple(step for at, step in enumerate(self.steps) if at not in dropped)
        return replace(self, steps=steps)

    def topic(self, _name: str) -> str:
        """Full name of the topic, which has no other name in steps."""
        return TOPIC

    @property
    def kinds(self) -> frozenset[str]:
        """What its steps do."""
        return frozenset(step.what for step in self.steps)

    def __str__(self) -> str:
        head = (
            f"scalable seed {self.seed}: {self.segments} segments on {self.brokers} brokers, "
            f"{self.producers} producers of {self.messages} messages with {self.keys} keys every "
            f"{self.think_s:.4f} s, {self.streams} stream and {self.queues} queue consumers, "
            f"ledgers of {self.ledger_entries}"
            + (", a reader" if self.has_reader else "")
            + (f", {self.entry_buckets} entry buckets" if self.entry_buckets > 1 else "")
            + (f", pruned, kept {self.keeps_min} min" if self.prunes else "")
            + (", calm" if self.is_calm else "")
        )
        return "\n".join([head, *(f"  {step}" for step in self.steps)])
