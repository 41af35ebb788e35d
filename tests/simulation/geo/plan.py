"""The plan of a random run of several clusters: everything that will happen, known beforehand.

Plain data, so that a failing one can be made shorter and kept as a file, as those of one cluster
(`tests/simulation/cluster/plan.py`).
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from zlib import crc32

from tests.simulation.plan import Step

EAST, WEST, NORTH = "east", "west", "north"

Lists = Mapping[str, tuple[str, ...]]
"""For each cluster, the clusters that its topics are copied to, itself among them."""

TOPOLOGIES: Mapping[str, Lists] = {
    "pair": {EAST: (EAST, WEST), WEST: (EAST, WEST)},
    "one_way": {EAST: (EAST, WEST), WEST: (WEST,)},
    "ring": {EAST: (EAST, WEST), WEST: (WEST, NORTH), NORTH: (NORTH, EAST)},
    "mesh": {
        EAST: (EAST, WEST, NORTH),
        WEST: (EAST, WEST, NORTH),
        NORTH: (EAST, WEST, NORTH),
    },
    "aggregation": {EAST: (EAST, NORTH), WEST: (WEST, NORTH), NORTH: (NORTH,)},
}

SMALL_BYTES = 200
"""Messages that are not big ones are smaller."""

NOWHERE = "__local__"
"""What a message lists that stays where it was published."""


def cluster_of(name: str) -> str:
    """Return the cluster that a machine, a process or a message belongs to, by its name."""
    return name.partition("-")[0]


def topic_name(number: int) -> str:
    """Return the full name of the topic with this number, from 1."""
    return f"persistent://public/default/t{number}"


@dataclass(frozen=True, slots=True)
class GeoPlan:
    """Everything about a run. A field that is added needs a default, for the files that lack it.

    A step is about a cluster, and mostly about the owner of the first topic there just then.
    """

    seed: int
    topology: str
    topics: int
    messages: int
    """Messages of each producer; each topic has one in each cluster."""
    think_s: float
    batching: bool
    limited_share: float
    """Share of the messages that say which clusters they are for."""
    big_share: float
    """Share of the messages of the first cluster that are larger than `SMALL_BYTES`."""
    consumers: tuple[str, ...]
    """Clusters that have a consumer of each topic, on one replicated subscription; () = none."""
    kind: str
    """Type of the subscription: exclusive or shared."""
    ack_share: float
    """Share of the messages that a consumer acknowledges when it gets them; others come again."""
    ledger_entries: int
    far_s: float
    """How long a frame is on its way between clusters, at least; up to three times so long."""
    net_jitter_s: float
    front_jitter_s: float
    keeps_frames: bool
    ack_persist_ms: int
    snapshot_entries: int
    """Entries after which the marks of sources are saved again."""
    entries_max: int
    """Copies under way."""
    trims: bool
    """Whether clusters that nobody copies to delete what they need no more."""
    starts_at_earliest: bool
    steps: tuple[Step, ...]
    store_jitter_s: float = 0.0
    keeps_holes: bool = False
    """Whether consumers never acknowledge some messages; see `is_kept`."""

    @property
    def lists(self) -> Lists:
        return TOPOLOGIES[self.topology]

    @property
    def clusters(self) -> tuple[str, ...]:
        return tuple(self.lists)

    def is_target(self, cluster: str) -> bool:
        """Return whether others copy to a cluster."""
        return any(cluster in listed for name, listed in self.lists.items() if name != cluster)

    def is_trimmed(self, cluster: str) -> bool:
        """Return whether a cluster deletes what it needs no more."""
        return self.trims and not self.is_target(cluster)

    def are_both_ways(self, one: str, other: str) -> bool:
        """Return whether two clusters copy to each other."""
        return other in self.lists[one] and one in self.lists[other]

    def is_kept(self, payload: bytes) -> bool:
        """Return whether no consumer ever acknowledges a message."""
        return self.keeps_holes and crc32(payload) % 4 == 0

    @property
    def changes_lists(self) -> bool:
        """Whether a cluster is taken out of a list for a while."""
        return any(step.what == "unlist" for step in self.steps)

    def to_json(self) -> str:
        return json.dumps(asdict(self), indent=1) + "\n"

    @classmethod
    def from_json(cls, text: str) -> "GeoPlan":
        value = json.loads(text)
        value["consumers"] = tuple(value["consumers"])
        value["steps"] = tuple(Step(*step) for step in value["steps"])
        return cls(**value)

    def without(self, *dropped: int) -> "GeoPlan":
        """The plan without some of its steps."""
        steps = tuple(step for at, step in enumerate(self.steps) if at not in dropped)
        return replace(self, steps=steps)

    def __str__(self) -> str:
        consumers = f", {self.kind} consumers at {'+'.join(self.consumers)}"
        head = (
            f"geo seed {self.seed}: {self.topology}, {self.topics} topics, "
            f"{self.messages} messages "
            f"every {self.think_s:.4f} s, {self.limited_share:.0%} limited, ledgers of "
            f"{self.ledger_entries}, {self.far_s:.3f} s apart, {self.entries_max} under way"
            + (consumers if self.consumers else "")
            + (", batches" if self.batching else "")
            + (", trimmed" if self.trims else "")
            + (", holes are kept" if self.keeps_holes else "")
            + (", from the earliest" if self.starts_at_earliest else "")
        )
        return "\n".join([head, *(f"  {step}" for step in self.steps)])
