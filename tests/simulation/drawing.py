"""Drawing the plan of a run from its seed.

Troubles are drawn so that they meet: a run has a theme, many steps happen around one moment, and
most name a bookie by its place in the ensemble that is written to just then. At most Qa - 1 bookies
of a run are lost or have rotten replicas: with more of them, entries may really be gone.
"""

from dataclasses import replace
from random import Random

from tests.simulation.ambushes import ambushed
from tests.simulation.plan import (
    LOG_OWNERS,
    MOVER,
    READERS,
    RECOVERERS,
    WRITER,
    Plan,
    Setting,
    Step,
)

CONFIGURATIONS = ((3, 3, 2), (2, 2, 2), (2, 1, 1), (2, 2, 1), (3, 2, 2), (5, 3, 2))
"""(E, Qw, Qa) that found bugs in the past."""

_OPTIONS: tuple[tuple[str, tuple[Setting, ...]], ...] = (
    ("sticky_reads", (True,)),
    ("reorder_reads", (False,)),
    ("speculative_read_ms", (1, 20)),
    ("recovery_read_bytes_max", (1, 100)),
    ("add_frame_bytes_max", (1, 200)),
    ("channel_bytes_max", (600,)),
    ("quarantine_errors_max", (1,)),
    ("ensemble_changes_max", (1, 2)),
    ("failed_member_rest_s", (0.05,)),
    ("bookie_failure_memory_s", (0.0,)),
    ("opportunistic_striping", (True,)),
    ("long_poll_entries_bytes", (0,)),
    ("follow_up_retry_delay_s", (0.02,)),
    ("ledger_manager", ("flat", "longhierarchical")),
)
"""Settings that are drawn now and then, with values that are far from the usual ones."""


def draw(seed: int) -> Plan:
    """The plan of a seed."""
    random = Random(f"plan/{seed}")
    quorum = CONFIGURATIONS[random.randrange(len(CONFIGURATIONS))]
    bookies = max(random.randint(4, 6), quorum[0])
    entries = random.randint(2, 10)
    think_s = random.choice((0.0, 0.0, 0.002, 0.01, 0.05))
    plan = Plan(
        seed=seed,
        quorum=quorum,
        bookies=bookies,
        entries=entries,
        window=random.randint(1, 4),
        think_s=think_s,
        batch=random.choice((1, 1, 1, 2, 3)),
        closes=random.random() < 0.6,
        net_jitter_s=random.choice((0.0, 0.001, 0.005, 0.02)),
        net_skew_s=random.choice((0.0, 0.002, 0.01, 0.04)),
        disk_jitter_s=random.choice((0.0, 0.002, 0.01, 0.03)),
        store_jitter_s=random.choice((0.0, 0.002, 0.02)),
        watch_jitter_s=random.choice((0.0, 0.01, 0.5)),
        keeps_frames=random.random() < 0.5,
        keeps_torn_writes=random.random() < 0.5,
        flush_interval_s=random.choice((0.1, 0.5, 5.0)),
        delayed_changes=random.random() < 0.25,
        explicit_lac_ms=random.choice((0.0, 0.0, 5.0, 50.0)),
        recovery_window=random.choice((1, 2, 8)),
        steps=(),
        log_owners=random.choice((0,) * 11 + (1, 2, 2, 3)),
        ledger_entries=random.choice((1, 2, 3, 5, 100)),
        digest=random.choice(("CRC32C", "CRC32C", "CRC32", "HMAC")),
        password=random.choice(("", "", "secret")),
        settings=tuple(
            (name, random.choice(values)) for name, values in _OPTIONS if random.random() < 0.1
        ),
    )
    # About as long as the writer takes if nothing goes wrong, and a little more.
    trip_s = 0.003 + plan.net_jitter_s + plan.net_skew_s / 2 + plan.disk_jitter_s
    horizon_s = 0.01 + entries * (think_s + trip_s / plan.window) * 1.5
    steps = _Drawer(random, plan, horizon_s).draw()
    return _swapped(ambushed(replace(plan, steps=tuple(sorted(steps)))), horizon_s)


def _swapped(plan: Plan, horizon_s: float) -> Plan:
    """In one of ten plans two bookies come back at each other's addresses.

    Drawn apart from all else: the other plans stay as they are.
    """
    random = Random(f"swap/{plan.seed}")
    if random.random() >= 0.1:
        return plan
    one, other = random.sample(range(plan.quorum[0]), 2)
    at_s = round(random.random() * horizon_s * 1.2, 6)
    swap = Step(at_s, "swap", f"@{one}", f"@{other}", random.choice((0.1, 0.5, 1.5)))
    # Who looks while one address stands for both.
    late = Step(round(at_s + 0.05, 6), "recover", RECOVERERS[-1])
    more = (swap, late) if random.random() < 0.5 else (swap,)
    return replace(plan, steps=tuple(sorted((*plan.steps, *more))))


class _Drawer:
    """Draws the steps: who else takes part, and what goes wrong."""

    def __init__(self, random: Random, plan: Plan, horizon_s: float) -> None:
        self._random = random
        self._plan = plan
        self._horizon_s = horizon_s
        self._moment_s = random.random() * horizon_s
        self._trip_s = 0.003 + plan.net_jitter_s + plan.net_skew_s + plan.disk_jitter_s
        self._bookies = [f"b{number}" for number in range(1, plan.bookies + 1)]
        self._recoverers = RECOVERERS[: random.choice((0, 1, 1, 2, 2, 3))]
        self._readers = READERS[: random.choice((0, 1, 1, 2))]
        self._owners = LOG_OWNERS[1 : plan.log_owners]
        self._damages_left = plan.quorum[2] - 1
        """Bookies that may be lost or rot: with Qa of them, entries may really be gone."""

    def draw(self) -> list[Step]:
        random = self._random
        steps: list[Step] = []
        for name in self._recoverers:
            rare = self._plan.log_owners and random.random() < 0.8
            for _ in range(0 if rare else random.choice((1, 1, 2))):
                steps.append(Step(self._time(), "recover", name))
        for name in self._owners:
            steps.append(Step(self._time(late=True), "own", name))
        for name in self._readers:
            steps.append(Step(self._time(), "tail", name))
        for _ in range(random.choice((0, 0, 1, 2))):
            steps.append(Step(self._time(late=True), "move", MOVER, number=random.randrange(1000)))
        kinds = list(_FAULTS)
        theme = random.choice(tuple(_THEMES.values()))
        weights = [weight * (6 if kind in theme else 1) for kind, weight in _FAULTS.items()]
        for kind in random.choices(kinds, weights, k=random.choice((0, 1, 2, 3, 4, 6, 8, 10))):
            steps += getattr(self, f"_{kind}")()
        if self._plan.log_owners:
            for _ in range(random.choice((0, 1, 1, 2))):
                steps += self._ledger_fails()
        return steps

    def _time(self, *, late: bool = False) -> float:
        """When a step happens: anywhere, or close to the moment around which others happen."""
        random = self._random
        if random.random() < 0.4:
            return round(self._moment_s + random.random() * self._trip_s, 6)
        stretch = 3.0 if late else 1.2
        return round(random.random() * self._horizon_s * stretch, 6)

    def _duration(self) -> float:
        """From a moment to far above the request timeout; most are about one round trip."""
        return round(self._random.choice((0.002, 0.01, 0.03, 0.1, 0.4, 1.0)) * self._scale(), 6)

    def _scale(self) -> float:
        return 0.5 + self._random.random()

    def _bookie(self) -> str:
        """Mostly one that matters just then."""
        if self._random.random() < 0.7:
            return f"@{self._random.randrange(self._plan.quorum[0])}"
        return self._random.choice(self._bookies)

    def _client(self) -> str:
        others = (*self._owners, *self._recoverers, *self._readers, MOVER)
        return self._random.choice((WRITER, WRITER, *others))

    def _slow_link(self) -> list[Step]:
        """Frames of one operation wait for a while; others overtake them on other links."""
        client, bookie = self._client(), self._bookie()
        step = Step(self._time(), "hold", client, bookie, self._duration())
        return [step._replace(number=self._frames())]

    def _frames(self) -> int:
        """Frames that a step is about: an operation (six of them), and an entry or any of them.

        One entry alone is what makes the members of a write set differ.
        """
        random = self._random
        entry = random.randrange(self._plan.entries) if random.random() < 0.5 else -1
        return random.randrange(6) + 6 * (entry + 1)

    def _block(self) -> list[Step]:
        one, other = self._client(), self._bookie()
        if self._random.random() < 0.5:
            one, other = other, one
        return [Step(self._time(), "block", one, other, self._duration())]

    def _partition(self) -> list[Step]:
        return [Step(self._time(), "partition", self._client(), self._bookie(), self._duration())]

    def _reset(self) -> list[Step]:
        return [Step(self._time(), "reset", self._client(), self._bookie())]

    def _lose_frame(self) -> list[Step]:
        client, bookie = self._client(), self._bookie()
        return [Step(self._time(), "lose_frame", client, bookie, number=self._frames())]

    def _slow_bookie(self) -> list[Step]:
        number = self._random.choice((5, 20, 100, 400))
        return [Step(self._time(), "slow_bookie", self._bookie(), "", self._duration(), number)]

    def _slow_disk(self) -> list[Step]:
        number = self._random.choice((5, 20, 100, 400))
        return [Step(self._time(), "slow_disk", self._bookie(), "", self._duration(), number)]

    def _refuse(self) -> list[Step]:
        client, bookie = self._client(), self._bookie()
        # Of one entry it can be known before it is sent.
        number = self._frames()
        at_s = self._time() if number < 6 else 0.0
        return [Step(at_s, "refuse", client, bookie, number=number)]

    def _move(self) -> list[Step]:
        return [Step(self._time(), "move", MOVER, number=self._random.randrange(1000))]

    def _members_fail(self) -> list[Step]:
        """Several members refuse the writer's adds, one soon after the other."""
        random = self._random
        frames, at_s = self._frames(), self._time()
        indices = random.sample(range(self._plan.quorum[0]), min(2, self._plan.quorum[0]))
        trouble = random.randrange(4)
        others: list[Step] = []
        if trouble == 0:
            others = [Step(0.0, "store_lose", WRITER, "reply lost")]
        elif trouble == 1:
            others = [Step(at_s, "store_hold", WRITER, "", self._duration())]
        return others + [
            Step(
                round(at_s + random.random() * self._trip_s * 2, 6),
                "refuse",
                WRITER,
                f"@{index}",
                number=frames,
            )
            for index in indices
        ]

    def _ledger_fails(self) -> list[Step]:
        """No bookie takes an owner's adds, or none is heard, so that its ledgers must be replaced;
        the list may be slow meanwhile."""
        random, at_s = self._random, self._time()
        owner = random.choice((WRITER, *self._owners))
        if random.random() < 0.6:
            steps = [
                Step(round(at_s + random.random() * self._trip_s, 6), "refuse", owner, bookie_id)
                for bookie_id in self._bookies * random.choice((2, 4, 8))
            ]
        else:
            for_s = self._duration()
            steps = [Step(at_s, "hold", owner, each, for_s, number=1) for each in self._bookies]
        if random.random() < 0.4:
            number = random.randrange(2)
            steps.append(Step(at_s, "store_hold", owner, "", self._duration(), number))
        return steps

    def _torn_tail(self) -> list[Step]:
        """The last entries reach some members only; the writer falls silent, and others recover.

        Each recoverer hears of other members late, or never.
        """
        random, plan = self._random, self._plan
        members = range(plan.quorum[0])
        at_s = self._moment_s + random.random() * self._trip_s
        late_s = random.choice((0.0, 0.05, 0.3, 3.0)) * self._scale()
        steps = [
            Step(
                0.0,
                random.choice(("hold", "hold", "lose_frame")),
                WRITER,
                f"@{index}",
                for_s=round(at_s + late_s + random.random() * self._trip_s * 6, 6),
                number=6 * (entry + 1),  # its ADD
            )
            for entry in range(random.randrange(plan.entries), plan.entries)
            for index in members
            if random.random() < 0.5
        ]
        if random.random() < 0.3:
            steps += self._members_fail()
        # Without the metadata store, only the bookies can stop it.
        silence = random.choice(("crash_client", "pause_client", "store_stall", "store_stall", ""))
        if silence:
            steps.append(Step(round(at_s, 6), silence, WRITER, "", self._pause()))
        if len(self._readers) < len(READERS):  # one that does not read already
            self._readers = READERS[: len(self._readers) + 1]
            steps.append(Step(round(at_s, 6), "tail", self._readers[-1]))
        for name in RECOVERERS[: random.choice((1, 2, 2, 3))]:
            begin_s = round(at_s + random.random() * self._trip_s * 3, 6)
            steps.append(Step(begin_s, "recover", name))
            for index in random.sample(members, min(len(members), random.choice((0, 1, 1, 2)))):
                what, number = random.choice(("hold", "hold", "refuse")), random.randrange(6)
                if what == "refuse":
                    number = 6 * random.randint(1, plan.entries)  # the write-back of one entry
                steps.append(Step(0.0, what, name, f"@{index}", self._duration(), number))
        return steps

    def _crash(self) -> list[Step]:
        number = self._random.randrange(2)  # power or only the process
        return [Step(self._time(), "crash", self._bookie(), "", self._duration(), number)]

    def _crash_at_step(self) -> list[Step]:
        number = self._random.randint(1, 6)
        return [Step(self._time(), "crash_at_step", self._bookie(), "", self._duration(), number)]

    def _stop(self) -> list[Step]:
        return [Step(self._time(), "stop", self._bookie(), "", self._duration())]

    def _pause_bookie(self) -> list[Step]:
        return [Step(self._time(), "pause_bookie", self._bookie(), "", self._pause())]

    def _pause_client(self) -> list[Step]:
        return [Step(self._time(), "pause_client", self._client(), "", self._pause())]

    def _pause(self) -> float:
        """Sometimes longer than a session lasts (2 s)."""
        return round(self._random.choice((0.01, 0.1, 0.7, 3.0)) * self._scale(), 6)

    def _crash_client(self) -> list[Step]:
        who = self._random.choice((WRITER, WRITER, *self._recoverers, *self._owners))
        return [Step(self._time(late=True), "crash_client", who)]

    def _disk_full(self) -> list[Step]:
        return [Step(self._time(), "disk_full", self._bookie(), "", self._duration())]

    def _cache_full(self) -> list[Step]:
        return [Step(self._time(), "cache_full", self._bookie(), "", self._duration())]

    def _sync_fails(self) -> list[Step]:
        """And the power fails soon: what the bookie confirmed nevertheless would be gone."""
        begin_s, for_s, who = self._time(), self._duration(), self._bookie()
        return [
            Step(begin_s, "sync_fails", who, "", for_s),
            Step(round(begin_s + 0.9 * for_s, 6), "crash", who, "", for_s),
        ]

    def _reads_fail(self) -> list[Step]:
        return [Step(self._time(), "reads_fail", self._bookie(), "", self._duration())]

    def _damage(self) -> list[Step]:
        """A bookie is lost for good, or its replicas rot; at most Qa - 1 bookies in a run."""
        if self._damages_left <= 0:
            return []
        self._damages_left -= 1
        at_s = self._time(late=True)
        if self._random.random() < 0.5:
            return [Step(at_s, "lose", self._random.choice(self._bookies))]
        bookie, number = self._random.choice(self._bookies), self._random.randrange(1000)
        return [
            Step(round(at_s + each * 0.01, 6), "rot", bookie, number=number + each)
            for each in range(self._random.randint(1, 4))
        ]

    def _store_stall(self) -> list[Step]:
        who = self._random.choice((self._client(), WRITER, ""))
        return [Step(self._time(), "store_stall", who, "", self._duration())]

    def _author(self) -> str:
        """Somebody who writes metadata."""
        others = (*self._recoverers, *self._owners)
        return self._random.choice((WRITER, WRITER, *others, *others, MOVER))

    def _store_lose(self) -> list[Step]:
        what = self._random.choice(("reply lost", "reply lost", "request lost", "unavailable"))
        number = self._random.randrange(8)  # see Faults
        # From the beginning, as a rule: it waits for the write that it is about.
        at_s = 0.0 if self._random.random() < 0.6 else self._time()
        return [Step(at_s, "store_lose", self._author(), what, number=number)]

    def _store_hold(self) -> list[Step]:
        number = self._random.randrange(2)  # before it is done, or its reply
        return [Step(self._time(), "store_hold", self._author(), "", self._duration(), number)]

    def _expire(self) -> list[Step]:
        return [Step(self._time(), "expire", self._random.choice((self._client(), self._bookie())))]

    def _new_bookie(self) -> list[Step]:
        return [Step(self._time(), "new_bookie")]


_FAULTS = {
    "slow_link": 10,
    "block": 4,
    "partition": 3,
    "reset": 3,
    "lose_frame": 6,
    "slow_bookie": 2,
    "slow_disk": 3,
    "move": 2,
    "refuse": 5,
    "members_fail": 4,
    "torn_tail": 3,
    "crash": 6,
    "crash_at_step": 3,
    "stop": 1,
    "pause_bookie": 2,
    "pause_client": 3,
    "crash_client": 2,
    "disk_full": 1,
    "cache_full": 1,
    "sync_fails": 1,
    "reads_fail": 2,
    "damage": 2,
    "store_stall": 3,
    "store_lose": 7,
    "store_hold": 4,
    "expire": 1,
    "new_bookie": 1,
}
"""Faults and how often they are drawn; the methods of `_Drawer` say what they are."""

_THEMES = {
    "anything": (),
    "ensemble changes": ("refuse", "members_fail", "slow_link", "store_hold", "move"),
    "lost and late frames": ("slow_link", "block", "lose_frame", "reset"),
    "tails": ("torn_tail", "refuse", "crash_client"),
    "crashes": ("crash", "crash_at_step", "slow_disk"),
    "metadata": ("store_lose", "store_hold", "store_stall", "members_fail", "move"),
    "pauses": ("pause_client", "pause_bookie", "slow_link"),
}
"""What a run has more of, so that troubles of one kind meet."""
