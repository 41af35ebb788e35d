"""Drawing the plan of a scalable topic's run from its seed.

A run has some splits and merges, mostly close together, and what goes wrong mostly happens while
one of them is under way, to a broker that has a part in it. In every fifth run nothing goes wrong.
"""

from dataclasses import replace
from random import Random

from tests.simulation.plan import Step
from tests.simulation.scalable.plan import ScalablePlan

COMMANDS = (
    "SEND",
    "SEND_RECEIPT",
    "MESSAGE",
    "ACK",
    "PRODUCER",
    "SUBSCRIBE",
    "SCALABLE_TOPIC_UPDATE",
    "SCALABLE_TOPIC_SUBSCRIBE_RESPONSE",
    "SCALABLE_TOPIC_ASSIGNMENT_UPDATE",
    "CLOSE_PRODUCER",
)
"""Commands whose frames are held for a while."""

_REBUCKETS_SHARE = 0.3
"""Of the plans."""


def draw(seed: int) -> ScalablePlan:
    """The plan of a seed."""
    random = Random(f"scalable/{seed}")
    is_calm = random.random() < 0.2
    prunes = random.random() < 0.4
    plan = ScalablePlan(
        seed=seed,
        brokers=random.choice((2, 2, 3)),
        segments=random.choice((1, 1, 2, 3)),
        producers=random.choice((1, 2)),
        keys=random.choice((2, 4, 8)),
        messages=random.randint(8, 24),
        think_s=random.choice((0.02, 0.1, 0.3)),
        streams=random.choice((1, 2, 3)),
        queues=random.choice((0, 1, 2)),
        has_reader=random.random() < 0.4,
        ack_share=random.choice((1.0, 1.0, 0.4)),
        ledger_entries=random.choice((2, 5, 100)),
        net_jitter_s=random.choice((0.0, 0.002, 0.02)),
        front_jitter_s=random.choice((0.0, 0.002, 0.02)),
        store_jitter_s=random.choice((0.0, 0.005, 0.03)),
        watch_jitter_s=random.choice((0.0, 0.02, 0.5)),
        keeps_frames=random.random() < 0.5,
        ack_persist_ms=random.choice((0, 100, 1000)),
        patience_ms=random.choice((100, 500, 1000)),
        grace_ms=random.choice((300, 2000, 10_000)),
        prunes=prunes,
        keeps_min=random.choice((0, 0, 1)) if prunes else 0,
        is_calm=is_calm,
        steps=(),
        # Drawn by itself, as `_rebuckets` is.
        entry_buckets=Random(f"scalable/buckets/{seed}").choice((1, 4)),
    )
    drawer = _Drawer(random, plan)
    steps = drawer.changes()
    if not is_calm:
        steps += drawer.faults(steps)
    steps += drawer.clients()
    steps += _rebuckets(Random(f"scalable/rebucket/{seed}"), plan, drawer.horizon_s)
    if prunes:
        steps += drawer.prunings()
    elif random.random() < 0.4:
        steps += drawer.seeks()
    return replace(plan, steps=tuple(sorted(steps)))


def _rebuckets(random: Random, plan: ScalablePlan, horizon_s: float) -> list[Step]:
    """Segments get other numbers of entry buckets, and more consumers come, which share them. Drawn
    by itself, so that other plans are as they were."""
    if random.random() >= _REBUCKETS_SHARE:
        return []
    steps = []
    for _ in range(random.choice((1, 2, 3))):
        at_s = round(0.1 + horizon_s * random.random() * 0.7, 6)
        by = f"br{random.randint(1, plan.brokers)}"
        steps.append(Step(at_s, "rebucket", by, number=random.randrange(256)))
    for _ in range(random.choice((1, 2, 3))):
        steps.append(Step(round(0.1 + horizon_s * random.random(), 6), "join"))
    return steps


class _Drawer:
    def __init__(self, random: Random, plan: ScalablePlan) -> None:
        self._random = random
        self._plan = plan
        self._horizon_s = self.horizon_s = 0.5 + plan.messages * plan.think_s / 2

    def _time(self) -> float:
        return round(0.1 + self._random.random() * self._horizon_s, 6)

    def _long(self) -> float:
        """Around the time that a session lasts (2 s), or shorter."""
        random = self._random
        return round(random.choice((0.05, 0.3, 1.0, 2.5, 4.0)) * (0.5 + random.random()), 6)

    def _broker(self) -> str:
        random = self._random
        kind = random.random()
        if kind < 0.5:
            return f"^{random.randrange(4)}"
        if kind < 0.7:
            return "^c"
        return f"br{random.randint(1, self._plan.brokers)}"

    # Layouts

    def changes(self) -> list[Step]:
        """Splits and merges, often two at once by different brokers."""
        random, steps = self._random, list[Step]()
        for _ in range(random.choice((1, 2, 3, 4, 6))):
            at_s = self._time()
            for _ in range(random.choice((1, 1, 1, 2))):
                what = random.choice(("split", "split", "split", "merge"))
                steps.append(Step(at_s, what, self._by(), number=random.randrange(256)))
                at_s = round(at_s + random.choice((0.0, 0.002, 0.02)), 6)
        return steps

    def _by(self) -> str:
        return f"br{self._random.randint(1, self._plan.brokers)}"

    def prunings(self) -> list[Step]:
        """Looks at what may be pruned."""
        random = self._random
        return [
            Step(round(0.5 + at * random.uniform(0.2, 0.5), 6), "prune", self._by())
            for at in range(int(4 + self._horizon_s * 2))
        ]

    def seeks(self) -> list[Step]:
        """The subscription of stream consumers goes back to the beginning."""
        random = self._random
        count = random.choice((1, 1, 2))
        return [
            Step(round(self._horizon_s * random.uniform(0.3, 1.2), 6), "seek", self._by())
            for _ in range(count)
        ]

    # Clients

    def clients(self) -> list[Step]:
        """Consumers come and go, in order or not."""
        random, steps = self._random, list[Step]()
        kinds = ["join", "leave"]
        kinds += [] if self._plan.is_calm else ["kill", "kill", "return"]
        kinds += ["unload", "unload"] if self._plan.is_calm else []
        kinds += ["restart_reader"] if self._plan.has_reader else []
        for what in random.choices(kinds, k=random.choice((0, 1, 2, 4))):
            who = self._broker() if what == "unload" else ""
            steps.append(Step(self._time(), what, who, number=random.randrange(8)))
        if random.random() < 0.35:
            steps += self._late()
        return steps

    def _late(self) -> list[Step]:
        """A queue consumer with a subscription of its own comes, goes, and comes back."""
        random = self._random
        at_s = round(0.1 + self._horizon_s * random.random() * 0.4, 6)
        away_s = round(at_s + random.uniform(0.2, 0.8), 6)
        for_s = round(random.choice((0.1, 0.5, 2.0)) * (0.5 + random.random()), 6)
        return [Step(at_s, "late"), Step(away_s, "late_away", "", "", for_s)]

    # Faults

    def faults(self, changes: list[Step]) -> list[Step]:
        """What goes wrong."""
        random, steps = self._random, list[Step]()
        for _ in range(random.choice((0, 1, 1, 2, 3, 4))):
            near = random.choice(changes).at_s
            soon_s = near + random.choice((0.005, 0.03, 0.1, 0.4)) * random.random()
            at_s = round(soon_s, 6) if random.random() < 0.7 else self._time()
            kind = random.choices(list(_FAULTS), list(_FAULTS.values()))[0]
            steps.append(self._fault(kind, at_s))
        return steps

    def _fault(self, kind: str, at_s: float) -> Step:
        random = self._random
        match kind:
            case "unload":
                return Step(at_s, kind, self._broker(), number=random.randrange(8))
            case "slow_frames":
                number = random.randrange(len(COMMANDS))
                return Step(at_s, kind, self._broker(), "", self._long(), number)
            case "store_lose_of":
                how = random.choice(("reply lost", "reply lost", "request lost", "unavailable"))
                return Step(at_s, kind, self._broker(), how, number=random.randrange(12))
            case "lose_record":
                how = random.choice(("reply lost", "reply lost", "request lost"))
                return Step(at_s, kind, "", how)
            case "store_outage":
                return Step(at_s, "store_stall", "", "", self._long())
            case "cut_brokers":
                return Step(at_s, kind, self._broker(), self._by(), self._long())
            case "jump_clock":
                number = random.choice((-60_000, -5_000, 5_000, 60_000))
                return Step(at_s, kind, self._broker(), number=number)
            case "expire" | "reset_clients":
                return Step(at_s, kind, self._broker())
            case _:
                return Step(at_s, kind, self._broker(), "", self._long())


_FAULTS = {
    "crash_broker": 5,
    "crash_writer": 4,
    "stop_broker": 2,
    "pause_broker": 3,
    "suspend_broker": 1,
    "store_stall": 3,
    "store_outage": 1,
    "store_lose_of": 3,
    "lose_record": 2,
    "expire": 2,
    "unload": 4,
    "no_bookies": 1,
    "no_clients": 2,
    "cut_brokers": 2,
    "slow_frames": 4,
    "reset_clients": 2,
    "jump_clock": 1,
}
"""Faults, and how often they are drawn."""
