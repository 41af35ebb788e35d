"""The plan of a random run of a cluster: everything that will happen, known before it begins.

Plain data, so that a failing one can be made shorter and kept as a file, as those of single ledgers
(`tests/simulation/plan.py`).
"""

import json
from dataclasses import asdict, dataclass, replace

from tests.simulation.plan import Setting, Step

NAMESPACES = ("public/default", "public/second")
"""Namespaces that topics may lie in."""


@dataclass(frozen=True, slots=True)
class ClusterPlan:
    """Everything about a run. A field that is added needs a default, for the files that lack it.

    A step is about a broker "br1" or the owner of a topic at that moment, "^t1"; about a bookie
    "b1" or a member of the ensemble that is written to, "@0".
    """

    seed: int
    quorum: tuple[int, int, int]
    bookies: int
    brokers: int
    topics: int
    messages: int
    """Messages per topic."""
    think_s: float
    batching: bool
    kinds: tuple[str, ...]
    """Type of the subscription of each topic: exclusive, failover or shared."""
    consumers: int
    """Consumers of a shared or failover subscription."""
    ack_share: float
    """Share of the messages that a consumer acknowledges when it gets them; others come again."""
    has_reader: bool
    ledger_entries: int
    net_jitter_s: float
    front_jitter_s: float
    disk_jitter_s: float
    store_jitter_s: float
    watch_jitter_s: float
    keeps_frames: bool
    flush_interval_s: float
    ack_persist_ms: int
    steps: tuple[Step, ...]
    recoveries: int = 0
    """Processes of auto-recovery."""
    settings: tuple[tuple[str, Setting], ...] = ()
    """Settings of the brokers that are not as usual."""
    is_calm: bool = False
    """Nothing goes wrong; what is done is done in order."""
    namespaces: int = 1
    """Topics lie in so many, in turn, and have the same local names there."""
    has_leavers: bool = False
    """Each topic has a second producer that publishes a little in the beginning, and no more."""

    def to_json(self) -> str:
        return json.dumps(asdict(self), indent=1) + "\n"

    @classmethod
    def from_json(cls, text: str) -> "ClusterPlan":
        value = json.loads(text)
        value["quorum"] = tuple(value["quorum"])
        value["kinds"] = tuple(value["kinds"])
        value["settings"] = tuple((name, each) for name, each in value.get("settings", ()))
        value["steps"] = tuple(Step(*step) for step in value["steps"])
        return cls(**value)

    def topic(self, name: str) -> str:
        """Full name of the topic that steps call "t1", "t2", ..."""
        place, namespace = divmod(int(name[1:]) - 1, self.namespaces)
        return f"persistent://{NAMESPACES[namespace]}/t{place + 1}"

    def without(self, *dropped: int) -> "ClusterPlan":
        """The plan without some of its steps."""
        steps = tuple(step for at, step in enumerate(self.steps) if at not in dropped)
        return replace(self, steps=steps)

    def __str__(self) -> str:
        head = (
            f"cluster seed {self.seed}: {self.quorum} on {self.bookies} bookies, "
            f"{self.brokers} brokers, {self.topics} topics ({', '.join(self.kinds)}), "
            f"{self.messages} messages every {self.think_s:.4f} s, ledgers of "
            f"{self.ledger_entries}"
            + (f", {self.recoveries} recoveries" if self.recoveries else "")
            + (f", {self.namespaces} namespaces" if self.namespaces > 1 else "")
        )
        return "\n".join([head, *(f"  {step}" for step in self.steps)])
