"""Drawing the plan of a run of several clusters from its seed.

A run has a topology and a theme; many steps happen around one moment, and most are about the ends
of one way: the owner of the topic at the source, or at the target. Some are *ambushes*: one
trouble makes the next one worse, as when entries are stored, their receipts are held up, and the
owner dies then.
"""

from dataclasses import replace
from random import Random

from tests.simulation.geo.faults import FAR_COMMANDS
from tests.simulation.geo.plan import TOPOLOGIES, GeoPlan
from tests.simulation.plan import Step

_FAULTS = {
    "crash_broker": 3,
    "stop_broker": 2,
    "pause_broker": 1,
    "unload": 3,
    "expire": 1,
    "cut": 3,
    "reset": 3,
    "lose_far": 3,
    "hold_far": 2,
    "no_bookies": 1,
    "slow_answers": 2,
    "slow_bookies": 1,
    "store_lose": 1,
    "unlist": 1,
    "no_list": 1,
    "stored_unanswered": 3,
    "undecided": 3,
    "twice_moved": 2,
    "late_way": 2,
    "small_limit": 3,
    "move_consumer": 2,
}
"""What may happen, and how often."""

_THEMES = (
    ("crash_broker", "stored_unanswered", "undecided", "slow_answers", "expire"),
    ("cut", "reset", "lose_far", "hold_far", "late_way"),
    ("unload", "stop_broker", "twice_moved"),
    ("unlist", "no_list", "small_limit"),
    ("move_consumer", "late_way", "crash_broker"),
    (),
)


def draw(seed: int) -> GeoPlan:
    """The plan of a seed."""
    random = Random(f"geo/{seed}")
    topology = random.choice(("pair", "pair", "pair", "mesh", "mesh", *TOPOLOGIES))
    clusters = tuple(TOPOLOGIES[topology])
    has_consumers = random.random() < 0.6
    consumers = tuple(random.sample(clusters, 1 if random.random() < 0.8 else 2))
    plan = GeoPlan(
        seed=seed,
        topology=topology,
        topics=random.choice((1, 1, 1, 2)),
        messages=random.randint(5, 16),
        think_s=random.choice((0.02, 0.1, 0.3)),
        batching=random.random() < 0.25,
        limited_share=random.choice((0.0, 0.0, 0.15, 0.4)),
        big_share=random.choice((0.0, 0.2, 0.4)),
        consumers=consumers if has_consumers else (),
        kind=random.choice(("exclusive", "shared")),
        ack_share=random.choice((1.0, 1.0, 0.7)),
        ledger_entries=random.choice((2, 5, 100)),
        far_s=random.choice((0.001, 0.01, 0.05)),
        net_jitter_s=random.choice((0.0, 0.002, 0.02)),
        front_jitter_s=random.choice((0.0, 0.002, 0.02)),
        keeps_frames=random.random() < 0.6,
        ack_persist_ms=random.choice((0, 100, 1000, 5000)),
        snapshot_entries=random.choice((1, 3, 1000)),
        entries_max=random.choice((1, 3, 1000)),
        trims=False,
        starts_at_earliest=random.random() < 0.25,
        steps=(),
        store_jitter_s=random.choice((0.0, 0.0, 0.02)),
    )
    if topology in ("one_way", "aggregation") and random.random() < 0.6:
        # A message that was trimmed tells nobody any more for whom it was.
        plan = replace(plan, trims=True, consumers=(), limited_share=0.0)
    holes = Random(f"geo/{seed}/holes")
    if plan.consumers and topology in ("pair", "mesh") and holes.random() < 0.5:
        plan = replace(plan, keeps_holes=True, consumers=consumers[:1], kind="shared")
    steps = tuple(sorted(_Drawer(random, plan).draw()))
    if any(step.what == "small_limit" for step in steps) and not plan.big_share:
        plan = replace(plan, big_share=0.3)
    return replace(plan, steps=steps)


class _Drawer:
    def __init__(self, random: Random, plan: GeoPlan) -> None:
        self._random = random
        self._plan = plan
        self._horizon_s = 0.3 + plan.messages * (plan.think_s / 2 + 0.01)
        self._moment_s = 0.1 + random.random() * self._horizon_s

    def draw(self) -> list[Step]:
        random = self._random
        theme = random.choice(_THEMES)
        weights = [weight * (5 if kind in theme else 1) for kind, weight in _FAULTS.items()]
        steps: list[Step] = []
        for kind in random.choices(list(_FAULTS), weights, k=random.choice((0, 1, 2, 3, 4, 6))):
            steps += getattr(self, f"_{kind}")()
        return steps

    # What steps have

    def _time(self) -> float:
        if self._random.random() < 0.5:
            return round(self._moment_s + self._random.random() * 0.1, 6)
        return round(self._random.random() * (0.1 + self._horizon_s * 1.3), 6)

    def _for(self, *seconds: float) -> float:
        return round(self._random.choice(seconds) * (0.5 + self._random.random()), 6)

    def _long(self) -> float:
        return self._for(0.1, 0.5, 1.5, 4.0)

    def _cluster(self) -> str:
        return self._random.choice(self._plan.clusters)

    def _way(self) -> tuple[str, str]:
        """One cluster, and another one that it copies to."""
        plan = self._plan
        ways = [
            (name, other)
            for name, listed in plan.lists.items()
            for other in listed
            if other != name
        ]
        return self._random.choice(ways)

    def _end(self) -> str:
        """Source or target of a way."""
        return self._random.choice(self._way())

    # Brokers

    def _crash_broker(self) -> list[Step]:
        return [Step(self._time(), "crash_broker", self._end(), "", self._long())]

    def _stop_broker(self) -> list[Step]:
        return [Step(self._time(), "stop_broker", self._end())]

    def _pause_broker(self) -> list[Step]:
        return [Step(self._time(), "pause_broker", self._end(), "", self._long())]

    def _unload(self) -> list[Step]:
        return [Step(self._time(), "unload", self._end(), number=self._random.randrange(2))]

    def _expire(self) -> list[Step]:
        return [Step(self._time(), "expire", self._end())]

    def _twice_moved(self) -> list[Step]:
        """The topic moves at both ends of a way, at nearly the same time."""
        source, target = self._way()
        at_s = self._time()
        then_s = round(at_s + self._random.random() * 0.3, 6)
        first, second = self._random.sample((source, target), 2)
        kind = self._random.choice(("unload", "crash_broker"))
        return [
            Step(at_s, "unload", first),
            Step(then_s, kind, second, "", self._long() if kind == "crash_broker" else 0.0),
        ]

    def _stored_unanswered(self) -> list[Step]:
        """Entries are stored, the answers of bookies are held up, and the owner dies or moves."""
        cluster, at_s = self._end(), self._time()
        for_s = self._for(0.3, 1.0)
        then_s = round(at_s + for_s * self._random.uniform(0.3, 0.9), 6)
        kind = self._random.choice(("crash_broker", "crash_broker", "unload"))
        return [
            Step(at_s, "slow_answers", cluster, "", for_s),
            Step(then_s, kind, cluster, "", self._long() if kind == "crash_broker" else 0.0),
        ]

    def _undecided(self) -> list[Step]:
        """What a target appends is held up, the way breaks, copies come again, and its owner dies
        before anything is stored."""
        source, target = self._way()
        at_s = self._time()
        # Requests to bookies are given up after 0.5 s; the next owner comes after two seconds.
        broken_s = round(at_s + self._random.uniform(0.05, 0.15), 6)
        dies_s = round(at_s + self._random.uniform(0.25, 0.45), 6)
        return [
            Step(at_s, "slow_bookies", target, "", self._for(1.0, 4.0)),
            Step(broken_s, "reset", source, target),
            Step(dies_s, "crash_broker", target, "", self._long()),
        ]

    # Between clusters

    def _cut(self) -> list[Step]:
        number = self._random.randrange(2)
        return [Step(self._time(), "cut", *self._way(), self._long(), number)]

    def _reset(self) -> list[Step]:
        at_s, way = self._time(), self._way()
        count = self._random.choice((1, 1, 3))
        return [Step(round(at_s + 0.15 * each, 6), "reset", *way) for each in range(count)]

    def _far(self) -> tuple[str, str, int]:
        """Two clusters and a command that goes from the first to the second."""
        source, target = self._way()
        at = self._random.randrange(len(FAR_COMMANDS))
        goes_there = FAR_COMMANDS[at] in ("SEND", "PRODUCER")
        return (source, target, at) if goes_there else (target, source, at)

    def _lose_far(self) -> list[Step]:
        source, target, at = self._far()
        number = at + len(FAR_COMMANDS) * self._random.choice((0, 0, 1, 2))
        return [Step(self._time(), "lose_far", source, target, number=number)]

    def _hold_far(self) -> list[Step]:
        source, target, at = self._far()
        return [Step(self._time(), "hold_far", source, target, self._long(), at)]

    def _late_way(self) -> list[Step]:
        """One way takes long, and others do not."""
        return [Step(self._time(), "cut", *self._way(), self._for(0.2, 0.6, 1.5), 1)]

    # Storage

    def _no_bookies(self) -> list[Step]:
        return [Step(self._time(), "no_bookies", self._end(), "", self._long())]

    def _slow_answers(self) -> list[Step]:
        return [Step(self._time(), "slow_answers", self._end(), "", self._for(0.1, 0.3, 1.0))]

    def _slow_bookies(self) -> list[Step]:
        return [Step(self._time(), "slow_bookies", self._end(), "", self._for(0.1, 0.3, 1.0))]

    def _store_lose(self) -> list[Step]:
        random = self._random
        what = random.choice(("reply lost", "reply lost", "request lost", "unavailable"))
        return [Step(self._time(), "store_lose", self._end(), what, number=random.randrange(12))]

    def _small_limit(self) -> list[Step]:
        """A target refuses the big messages of the first cluster for a while."""
        first, *_ = self._plan.clusters
        targets = [each for each in self._plan.lists[first] if each != first]
        return [Step(self._time(), "small_limit", targets[0], "", self._for(0.3, 1.0, 3.0))]

    # Lists and consumers

    def _unlist(self) -> list[Step]:
        if self._plan.consumers and len(self._plan.clusters) > 2:
            return []  # subscriptions need that all clusters copy to all others from the beginning
        return [Step(self._time(), "unlist", *self._way(), self._for(0.3, 1.0, 3.0))]

    def _no_list(self) -> list[Step]:
        source, _ = self._way()
        return [Step(self._time(), "no_list", source, "", self._for(0.3, 1.0, 3.0))]

    def _move_consumer(self) -> list[Step]:
        if not self._plan.consumers:
            return []
        source = self._random.choice(self._plan.consumers)
        others = [each for each in self._plan.clusters if each != source]
        target = self._random.choice(others)
        at_s = self._time()
        steps = [Step(at_s, "move_consumer", source, target, self._for(0.01, 0.5))]
        if self._random.random() < 0.4:
            back_s = round(at_s + self._for(0.5, 1.5), 6)
            steps.append(Step(back_s, "move_consumer", target, source, self._for(0.01, 0.5)))
        return steps
