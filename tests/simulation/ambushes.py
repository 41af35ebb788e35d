"""Plans for moments that troubles drawn one by one do not meet: three of twenty seeds have one.

Each takes the plan that was drawn for its seed, keeps some of its troubles, and lays one trap.
"""

from collections.abc import Callable
from dataclasses import replace
from random import Random

from tests.simulation.plan import MOVER, READERS, WRITER, Plan, Step

PERIOD = 20
"""Of so many seeds in a row, three have an ambush, one of each kind."""

_KEPT_MAX = 3
"""Other troubles in such a run: more of them, and the moment seldom comes."""


_NEVER_KEPT = ("own", "lose", "rot")
"""The plan may have another workload, or another ack quorum: as many losses may be too many."""


def ambushed(plan: Plan) -> Plan:
    """The plan of a seed, with its ambush if it has one."""
    lay = _KINDS.get(plan.seed % PERIOD)
    if lay is None:
        return plan
    plan = lay(plan, Random(f"ambush/{plan.seed}"))
    return replace(plan, steps=tuple(sorted(plan.steps)))


def _quieter(plan: Plan, random: Random) -> Plan:
    """A few of its troubles, and no setting that forbids what the ambush waits for."""
    steps = [step for step in plan.steps if step.what not in _NEVER_KEPT]
    count = min(len(steps), random.choice((0, 0, 1, 2, _KEPT_MAX)))
    settings = [each for each in plan.settings if each[0] != "ensemble_changes_max"]
    return replace(
        plan,
        steps=tuple(random.sample(steps, count)),
        settings=tuple(settings),
        delayed_changes=False,
        log_owners=0,
    )


def _moved_during_a_change(plan: Plan, random: Random) -> Plan:
    """A replica moves between the writer's look at its metadata and the write of its second
    change: the first fragment is not what the writer knows (rule 2.1, D12)."""
    quorum = plan.quorum if plan.quorum[0] < 5 else (3, 3, 2)
    entries = random.randint(4, 10)
    plan = replace(_quieter(plan, random), bookies=6, quorum=quorum, entries=entries)
    size, write_quorum, _ = quorum
    first, second = sorted(random.sample(range(1, entries), 2))
    members = [(first + random.randrange(write_quorum)) % size]
    others = [(second + k) % size for k in range(write_quorum)]
    members.append(random.choice([each for each in others if each != members[0]] or others))
    steps = [
        *plan.steps,
        Step(0.0, "cut_in", MOVER, number=random.randrange(1000)),
        *(
            Step(0.0, "refuse", WRITER, f"@{member}", number=6 * (entry + 1))
            for entry, member in zip((first, second), members, strict=True)
        ),
    ]
    return replace(plan, steps=tuple(steps), window=random.choice((1, 1, 2)))


def _moved_behind_a_reader(plan: Plan, random: Random) -> Plan:
    """Replicas move away after a reader has opened the ledger (rule 2.6, D23)."""
    quorum = random.choice(((2, 1, 1), (2, 2, 1), (2, 2, 2), (3, 2, 2)))
    plan = replace(_quieter(plan, random), bookies=6, quorum=quorum)
    steps = [
        *plan.steps,
        Step(0.0, "keep_open", READERS[0]),
        Step(0.0, "evacuate", MOVER, number=random.randrange(1000)),
    ]
    return replace(plan, steps=tuple(steps))


def _lost_with_its_list(plan: Plan, random: Random) -> Plan:
    """A log's owner dies while the write that lists its next ledger is on the way, and is lost
    (managed ledger, rule 2.2, M1)."""
    plan = replace(
        _quieter(plan, random),
        log_owners=1,
        entries=random.randint(6, 10),
        ledger_entries=random.choice((1, 2, 3)),
    )
    dies_after_s = random.choice((0.0, 0.03, 0.1, 0.3)) * (0.5 + random.random())
    death = Step(0.0, "die_unlisted", MOVER, WRITER, round(dies_after_s, 6))
    return replace(plan, steps=(*plan.steps, death))


_KINDS: dict[int, Callable[[Plan, Random], Plan]] = {
    6: _moved_during_a_change,
    14: _moved_behind_a_reader,
    16: _lost_with_its_list,
}
"""By the seed's place in a period."""
