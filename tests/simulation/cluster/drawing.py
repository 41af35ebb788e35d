"""Drawing the plan of a cluster's run from its seed.

A run has a theme, many steps happen around one moment, and most are about the owner of a topic just
then. At most Qa - 1 bookies of a run are lost for good.
"""

from dataclasses import replace
from random import Random

from tests.simulation.cluster.plan import ClusterPlan
from tests.simulation.plan import Setting, Step

CONFIGURATIONS = ((3, 3, 2), (2, 2, 2), (2, 2, 1), (3, 2, 2))
COMMANDS = ("SEND", "SEND_RECEIPT", "MESSAGE", "ACK", "LOOKUP_RESPONSE", "PRODUCER", "SUBSCRIBE")
KINDS = ("exclusive", "failover", "shared")
TRIMMED_SEEDS_FROM = 1_000_000
"""From here on every second seed has brokers that trim all the time."""
_TRIMMED = (("retention_check_interval_s", 0.25),)

DEDUPLICATING_SEEDS_FROM = 2_000_000
"""From here on topics deduplicate; with even seeds they are trimmed as well."""

BUSY_SEEDS_FROM = 3_000_000
"""From here on topics move all the time and are trimmed. Every third run has no other trouble;
in every third one they deduplicate."""
_MOVES = ("unload", "unload", "stop", "crash_consumer")


def searched(number: int) -> int:
    """The seed of the plan with this number in a search: a plain one and a busy one in turn."""
    return number // 2 + (BUSY_SEEDS_FROM if number % 2 else 0)


def draw(seed: int) -> ClusterPlan:
    """The plan of a seed."""
    return _draw_busy(seed) if seed >= BUSY_SEEDS_FROM else _draw(seed)


def _draw_busy(seed: int) -> ClusterPlan:
    """As of any other seed, with moves besides, smaller ledgers and acknowledgements that are
    stored seldom."""
    random = Random(f"cluster/busy/{seed}")
    plan = _draw(seed % DEDUPLICATING_SEEDS_FROM)
    is_calm, deduplicates = seed % 3 == 0, seed % 3 == 1
    topics = plan.topics
    settings: tuple[tuple[str, Setting], ...] = _TRIMMED
    if deduplicates:
        entries = random.choice((2, 100, 100))
        settings += (("deduplication", True), ("dedup_snapshot_entries", entries))
    plan = replace(
        plan,
        seed=seed,
        messages=random.randint(6, 16),
        think_s=random.choice((0.05, 0.2, 0.5)),
        ledger_entries=random.choice((1, 2, 4)),
        ack_persist_ms=random.choice((0, 300, 5000) if seed % 3 != 2 else (0, 0, 50)),
        recoveries=random.choice((0, 0, 1)) if not is_calm else 0,
        steps=(),
        settings=settings,
        is_calm=is_calm,
        namespaces=random.choice((1, 2)) if topics > 1 else 1,
        has_leavers=deduplicates and random.random() < 0.7,
    )
    drawer = _Drawer(random, plan)
    steps = drawer.moves()
    if is_calm:
        steps += drawer.slow_answers(steps)
    elif deduplicates:
        steps += drawer.unanswered()
    else:
        steps += drawer.unreadable_cursor()
    if not is_calm:
        steps += drawer.draw()
    if plan.recoveries:
        steps += drawer.refused_copies()
    return replace(plan, steps=tuple(sorted(steps)))


def _draw(seed: int) -> ClusterPlan:
    random = Random(f"cluster/{seed}")
    quorum = random.choice(CONFIGURATIONS)
    topics = random.choice((1, 1, 2, 3))
    messages = random.randint(3, 12)
    think_s = random.choice((0.005, 0.05, 0.3, 0.8))
    plan = ClusterPlan(
        seed=seed,
        quorum=quorum,
        bookies=random.randint(max(4, quorum[0] + 1), 5),
        brokers=random.choice((2, 2, 3)),
        topics=topics,
        messages=messages,
        think_s=think_s,
        batching=random.random() < 0.3,
        kinds=tuple(random.choice(KINDS) for _ in range(topics)),
        consumers=random.choice((1, 2)),
        ack_share=random.choice((1.0, 1.0, 0.7)),
        has_reader=random.random() < 0.5,
        ledger_entries=random.choice((1, 2, 4, 100)),
        net_jitter_s=random.choice((0.0, 0.002, 0.02)),
        front_jitter_s=random.choice((0.0, 0.002, 0.02)),
        disk_jitter_s=random.choice((0.0, 0.002, 0.02)),
        store_jitter_s=random.choice((0.0, 0.005, 0.05)),
        watch_jitter_s=random.choice((0.0, 0.02, 0.5)),
        keeps_frames=random.random() < 0.5,
        flush_interval_s=random.choice((0.5, 5.0)),
        ack_persist_ms=random.choice((0, 50, 300)),
        recoveries=random.choice((0, 0, 0, 1, 2)),
        steps=(),
    )
    steps = _Drawer(random, plan).draw()
    is_trimmed = seed >= TRIMMED_SEEDS_FROM and seed % 2 == 0
    settings = (*plan.settings, *_TRIMMED) if is_trimmed else plan.settings
    if seed >= DEDUPLICATING_SEEDS_FROM:
        entries = 1 + seed % 5
        settings = (*settings, ("deduplication", True), ("dedup_snapshot_entries", entries))
    return replace(plan, steps=tuple(sorted(steps)), settings=settings)


class _Drawer:
    def __init__(self, random: Random, plan: ClusterPlan) -> None:
        self._random = random
        self._plan = plan
        # Some twenty operations of the store come before the first message.
        self._begin_s = 0.03 + 20 * (0.001 + plan.store_jitter_s / 2)
        self._horizon_s = 0.1 + plan.messages * (plan.think_s / 2 + 0.01)
        self._moment_s = self._begin_s + random.random() * self._horizon_s
        self._losses_left = plan.quorum[2] - 1

    def draw(self) -> list[Step]:
        random = self._random
        theme = random.choice(tuple(_THEMES.values()))
        if self._plan.recoveries:
            theme = random.choice((theme, _REPAIRS))
        weights = [weight * (6 if kind in theme else 1) for kind, weight in _FAULTS.items()]
        steps: list[Step] = []
        for kind in random.choices(list(_FAULTS), weights, k=random.choice((0, 1, 2, 3, 4, 6))):
            steps += getattr(self, f"_{kind}")()
        return steps

    def moves(self) -> list[Step]:
        """A topic or a broker at a time, one after the other, as long as messages come."""
        random, steps = self._random, list[Step]()
        at_s = self._begin_s + random.random() * 0.3
        while at_s < self._begin_s + self._horizon_s:
            match random.choice(_MOVES):
                case "unload":
                    number = random.randrange(3)
                    steps.append(Step(round(at_s, 6), "unload", self._topic(), number=number))
                case "stop":
                    for_s = self._short()
                    steps.append(
                        Step(round(at_s, 6), "stop_broker", f"^{self._topic()}", "", for_s)
                    )
                case _:
                    for_s = self._short()
                    steps.append(Step(round(at_s, 6), "crash_consumer", self._topic(), "", for_s))
            at_s += random.uniform(0.2, 1.0)
        return steps

    def slow_answers(self, moves: list[Step]) -> list[Step]:
        """Publishes are under way when a topic moves, for a time that a move waits for."""
        random, steps = self._random, list[Step]()
        for move in moves:
            if move.what == "crash_consumer" or random.random() < 0.3:
                continue
            topic = move.who.removeprefix("^")
            at_s = max(0.0, move.at_s - random.uniform(0.01, 0.15))
            for_s = round(random.uniform(0.2, 0.4), 6)
            steps.append(Step(round(at_s, 6), "slow_answers", f"^{topic}", "", for_s))
            steps.append(self._more(topic, at_s + 0.001))
        return steps

    def unanswered(self) -> list[Step]:
        """Receipts are on their way when the owner of a topic crashes, stops or gives it up."""
        random, steps = self._random, list[Step]()
        receipts = COMMANDS.index("SEND_RECEIPT")
        for _ in range(random.choice((1, 2, 3))):
            topic, owner = (named := self._topic()), f"^{named}"
            at_s = self._begin_s + random.random() * self._horizon_s
            for_s = round(random.uniform(0.5, 1.5), 6)
            steps.append(Step(round(at_s, 6), "slow_frames", owner, "", for_s, number=receipts))
            steps.append(self._more(topic, at_s + 0.001))
            ends_s = round(at_s + for_s * random.uniform(0.3, 0.9), 6)
            end = random.choice(("crash_broker", "crash_broker", "stop_broker", "unload"))
            if end == "unload":
                steps.append(Step(ends_s, end, topic, number=2))
            else:
                steps.append(Step(ends_s, end, owner, "", self._short()))
        return steps

    def unreadable_cursor(self) -> list[Step]:
        """The owner crashes, and what it stored of a subscription cannot be read for a while."""
        random, steps = self._random, list[Step]()
        topic = self._topic()
        at_s = self._begin_s + random.random() * self._horizon_s
        for _ in range(3):  # acknowledged and stored one after the other
            steps.append(self._more(topic, at_s))
            at_s += random.uniform(0.05, 0.2)
        # Its session ends after two seconds.
        steps.append(Step(round(at_s, 6), "refuse_cursor", topic, "", 4.0))
        steps.append(Step(round(at_s + 0.001, 6), "crash_broker", f"^{topic}", "", self._short()))
        steps.append(self._more(topic, at_s + random.uniform(2.5, 3.5)))
        return steps

    def _more(self, topic: str, at_s: float) -> Step:
        return Step(round(at_s, 6), "publish", topic, number=self._random.choice((1, 2, 3)))

    def refused_copies(self) -> list[Step]:
        """A bookie is lost, and some that are given its copies refuse them."""
        random = self._random
        steps = self._lose()
        for _ in range(random.choice((1, 2))):
            at_s = round(self._begin_s + random.random(), 6)
            steps.append(Step(at_s, "refuse_copies", "", number=random.randrange(16)))
        return steps

    # What steps have

    def _time(self) -> float:
        random = self._random
        kind = random.random()
        if kind < 0.5:
            return round(self._moment_s + random.random() * 0.05, 6)
        if kind < 0.6:
            return round(random.random() * self._begin_s, 6)
        return round(self._begin_s + random.random() * self._horizon_s * 1.5, 6)

    def _scale(self) -> float:
        return 0.5 + self._random.random()

    def _short(self) -> float:
        """About some round trips."""
        return round(self._random.choice((0.005, 0.03, 0.1, 0.4)) * self._scale(), 6)

    def _long(self) -> float:
        """Around the time that a session lasts (2 s), or longer than anybody waits."""
        return round(self._random.choice((0.1, 1.0, 1.4, 2.5, 5.0)) * self._scale(), 6)

    def _topic(self) -> str:
        return f"t{self._random.randint(1, self._plan.topics)}"

    def _broker(self) -> str:
        """Mostly the owner of a topic."""
        if self._random.random() < 0.75:
            return f"^{self._topic()}"
        return f"br{self._random.randint(1, self._plan.brokers)}"

    def _bookie(self) -> str:
        if self._random.random() < 0.6:
            return f"@{self._random.randrange(self._plan.quorum[0])}"
        return f"b{self._random.randint(1, self._plan.bookies)}"

    # Brokers

    def _crash_broker(self) -> list[Step]:
        return [Step(self._time(), "crash_broker", self._broker(), "", self._long())]

    def _stop_broker(self) -> list[Step]:
        return [Step(self._time(), "stop_broker", self._broker(), "", self._long())]

    def _pause_broker(self) -> list[Step]:
        return [Step(self._time(), "pause_broker", self._broker(), "", self._long())]

    def _suspend_broker(self) -> list[Step]:
        return [Step(self._time(), "suspend_broker", self._broker(), "", self._long())]

    def _jump_clock(self) -> list[Step]:
        number = self._random.choice((-3_600_000, -5_000, 5_000, 3_600_000))
        return [Step(self._time(), "jump_clock", self._broker(), number=number)]

    def _no_store(self) -> list[Step]:
        return [Step(self._time(), "store_stall", self._broker(), "", self._long())]

    def _superseded(self) -> list[Step]:
        """The owner is cut off from the store, or asleep, for longer than its session lasts; and
        somebody comes who asks another broker meanwhile."""
        random, topic, at_s = self._random, self._topic(), self._time()
        what = random.choice(("store_stall", "store_stall", "suspend_broker", "pause_broker"))
        for_s = round(random.uniform(3.5, 7.0), 6)
        comes_s = round(at_s + random.uniform(2.1, 3.3), 6)
        return [
            Step(at_s, what, f"^{topic}", "", for_s),
            Step(comes_s, "crash_consumer", topic, "", 0.02),
            Step(round(comes_s + 0.3, 6), "crash_consumer", topic, "", 0.02),
        ]

    def _no_bookies(self) -> list[Step]:
        return [Step(self._time(), "no_bookies", self._broker(), "", self._long())]

    def _no_clients(self) -> list[Step]:
        return [Step(self._time(), "no_clients", self._broker(), "", self._long())]

    def _expire(self) -> list[Step]:
        return [Step(self._time(), "expire", self._broker())]

    def _unload(self) -> list[Step]:
        return [Step(self._time(), "unload", self._topic(), number=self._random.randrange(3))]

    # Metadata

    def _outage(self) -> list[Step]:
        return [Step(self._time(), "store_stall", "", "", self._long())]

    def _store_lose(self) -> list[Step]:
        random = self._random
        what = random.choice(("reply lost", "reply lost", "request lost", "unavailable"))
        at_s = 0.0 if random.random() < 0.3 else self._time()
        return [Step(at_s, "store_lose_of", self._broker(), what, number=random.randrange(12))]

    def _store_hold(self) -> list[Step]:
        number = self._random.randrange(2)
        return [Step(self._time(), "store_hold", self._broker(), "", self._short(), number)]

    # Clients

    def _slow_frames(self) -> list[Step]:
        number = self._random.randrange(len(COMMANDS))
        return [Step(self._time(), "slow_frames", self._broker(), "", self._long(), number)]

    def _reset_clients(self) -> list[Step]:
        return [Step(self._time(), "reset_clients", self._broker())]

    def _crash_consumer(self) -> list[Step]:
        return [Step(self._time(), "crash_consumer", self._topic(), "", self._short())]

    # Auto-recovery

    def _recovery(self) -> str:
        return f"ar{self._random.randint(1, max(1, self._plan.recoveries))}"

    def _crash_recovery(self) -> list[Step]:
        return [Step(self._later_time(), "crash_recovery", self._recovery(), "", self._long())]

    def _pause_recovery(self) -> list[Step]:
        return [Step(self._later_time(), "pause_recovery", self._recovery(), "", self._long())]

    def _cut_recovery(self) -> list[Step]:
        return [Step(self._later_time(), "store_stall", self._recovery(), "", self._long())]

    def _hold_recovery(self) -> list[Step]:
        number = self._random.randrange(2)
        at_s = self._later_time()
        return [Step(at_s, "store_hold", self._recovery(), "", self._long(), number)]

    def _later_time(self) -> float:
        """A repair begins seconds after the loss."""
        return round(self._begin_s + self._random.random() * 8.0, 6)

    # Bookies

    def _rot(self) -> list[Step]:
        if self._losses_left <= 0:
            return []
        self._losses_left -= 1
        at_s, bookie, number = self._time(), self._bookie(), self._random.randrange(1000)
        return [Step(at_s, "rot", bookie, number=number + each) for each in range(3)]

    def _crash(self) -> list[Step]:
        number = self._random.randrange(2)
        return [Step(self._time(), "crash", self._bookie(), "", self._short(), number)]

    def _pause_bookie(self) -> list[Step]:
        return [Step(self._time(), "pause_bookie", self._bookie(), "", self._short())]

    def _lose(self) -> list[Step]:
        if self._losses_left <= 0:
            return []
        self._losses_left -= 1
        return [Step(self._time(), "lose", self._bookie())]

    def _slow_link(self) -> list[Step]:
        number = self._random.randrange(6)
        return [Step(self._time(), "hold", self._broker(), self._bookie(), self._short(), number)]

    def _partition(self) -> list[Step]:
        return [Step(self._time(), "partition", self._broker(), self._bookie(), self._short())]

    def _refuse(self) -> list[Step]:
        number = self._random.randrange(6)
        return [Step(self._time(), "refuse", self._broker(), self._bookie(), number=number)]


_FAULTS = {
    "crash_broker": 4,
    "stop_broker": 2,
    "pause_broker": 4,
    "suspend_broker": 2,
    "jump_clock": 1,
    "no_store": 4,
    "superseded": 3,
    "no_bookies": 2,
    "no_clients": 2,
    "expire": 2,
    "unload": 3,
    "outage": 2,
    "store_lose": 4,
    "store_hold": 3,
    "slow_frames": 3,
    "reset_clients": 2,
    "crash_consumer": 2,
    "crash": 3,
    "pause_bookie": 1,
    "lose": 1,
    "rot": 1,
    "crash_recovery": 1,
    "pause_recovery": 1,
    "cut_recovery": 1,
    "hold_recovery": 1,
    "slow_link": 3,
    "partition": 1,
    "refuse": 2,
}
"""Faults and how often they are drawn; the methods of `_Drawer` say what they are."""

_REPAIRS = ("lose", "rot", "crash_recovery", "pause_recovery", "cut_recovery", "hold_recovery")

_THEMES = {
    "anything": (),
    "owners": ("crash_broker", "pause_broker", "suspend_broker", "stop_broker", "unload"),
    "sessions": ("superseded", "no_store", "outage", "expire", "pause_broker", "slow_frames"),
    "metadata": ("store_lose", "store_hold", "no_store"),
    "clients": ("slow_frames", "reset_clients", "no_clients", "crash_consumer"),
    "bookies": ("crash", "slow_link", "partition", "refuse", "no_bookies", "lose"),
}
"""What a run has more of, so that troubles of one kind meet."""
