"""Two clusters that copy both ways, under kills, pauses and cuts: nothing lost, nothing twice.

Official clients publish and consume at both clusters meanwhile. A broker or a bookie is killed -9
or paused, a topic is unloaded, a link between the clusters is cut for a while, or all of its
connections are dropped, in an order that a seed decides. Cuts go on while other faults come.
Afterwards everything heals, and what the clients saw is judged (`verdict.py`); and what is
acknowledged at one cluster must be known to the other one as before.
"""

import random
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.chaos.geo.field import (
    CLUSTERS,
    SETTLE_S,
    Alone,
    Field,
    Side,
    Whole,
    partitions,
)
from tests.chaos.geo.traffic import MOVES, Traffic, read_all
from tests.chaos.geo.verdict import Histories, judge
from tests.waiting import wait_until

_PROGRESS_S = 60.0
_LAST_S = 1.0
_BETWEEN_S = 0.7
_PAUSES_S = (0.2, 1.0, 4.0)
_CUTS_S = (0.5, 2.0, 12.0)
"""The last is longer than a receipt may be awaited."""
_KINDS = {
    "broker killed": 4,
    "bookie killed": 2,
    "broker paused": 1,
    "bookie paused": 1,
    "topic unloaded": 1,
    "link cut": 2,
    "link dropped": 2,
}


@dataclass(frozen=True, slots=True)
class Plan:
    """One run."""

    seed: int
    kills: int
    """Faults in all."""
    is_small: bool = False
    """A cluster is one standalone server."""


@dataclass(slots=True)
class _Cuts:
    """Links that are cut, and until when."""

    stage: Field
    until_s: dict[str, float] = field(default_factory=dict)

    def cut(self, link: str, seconds: float) -> None:
        self.stage.links.cut(link)
        self.until_s[link] = time.monotonic() + seconds

    def mend(self, *, all_of_them: bool = False) -> None:
        """Mend what has been cut for long enough."""
        for link, until_s in list(self.until_s.items()):
            if all_of_them or time.monotonic() >= until_s:
                self.stage.links.mend(link)
                del self.until_s[link]


def run(plan: Plan, directory: Path) -> dict[str, Any]:
    """The drill and its verdict, as JSON."""
    directory.mkdir(parents=True, exist_ok=True)
    began_s = time.monotonic()
    with Field(directory, Alone if plan.is_small else Whole) as stage:
        traffic = Traffic(stage, directory, plan.seed)
        try:
            traffic.start()
            strikes = _strike(plan, stage, traffic)
            settled_s, problems = _settle(stage, traffic)
            for side in stage.sides.values():
                traffic.seen.read[side.name] = read_all(traffic.connect(side.name), partitions())
        finally:
            traffic.stop()
        problems += [each for side in stage.sides.values() for each in side.exceptions()]
    problems += [*traffic.problems, *judge(traffic.seen)]
    return {
        "ok": not problems,
        "seed": plan.seed,
        "faults": dict(strikes),
        "messages": len(traffic.seen.acknowledged),
        "moves": traffic.moves,
        "repeated": _repeated(traffic.seen),
        "settled_s": settled_s,
        "seconds": round(time.monotonic() - began_s),
        "problems": problems[:20],
    }


def _repeated(seen: Histories) -> dict[str, int]:
    """How many deliveries were repetitions, by who got them."""
    given = {**seen.delivered, MOVES: seen.moved}
    return {name: len(messages) - len(set(messages)) for name, messages in given.items()}


def _strike(plan: Plan, stage: Field, traffic: Traffic) -> Counter[str]:
    rng = random.Random(plan.seed)
    cuts = _Cuts(stage)
    done: Counter[str] = Counter()
    while done.total() < plan.kills:
        # Something must happen in between, or there would be nothing to break.
        _wait_for_copies(traffic, cuts)
        _pass_time(rng.uniform(0, _BETWEEN_S), cuts)
        side = stage.sides[rng.choice(CLUSTERS)]
        kind = _drawn(rng, side)
        _carry_out(kind, rng, side, cuts)
        done[kind] += 1
        sys.stderr.write(
            f"{done.total()}: {kind} at {side.name}; {traffic.received()} copies received, "
            f"{traffic.moves} moves\n"
        )
        if traffic.problems:
            break
    cuts.mend(all_of_them=True)
    return done


def _wait_for_copies(traffic: Traffic, cuts: _Cuts) -> None:
    """Wait until copies come to consumers; not for ever while a link is cut."""
    before = traffic.received()

    def go_on() -> bool:
        cuts.mend()
        return traffic.received() > before or bool(traffic.problems)

    try:
        wait_until(go_on, "copies come", within_s=_PROGRESS_S if cuts.until_s else SETTLE_S)
    except AssertionError:
        if not cuts.until_s:
            traffic.wrong(f"no copy came for {SETTLE_S:.0f} s, with everything up")


def _drawn(rng: random.Random, side: Side) -> str:
    kinds = [each for each in _KINDS if side.servers.bookies or not each.startswith("bookie")]
    return rng.choices(kinds, [_KINDS[each] for each in kinds])[0]


def _carry_out(kind: str, rng: random.Random, side: Side, cuts: _Cuts) -> None:
    """Do a fault, and undo it; a cut is undone later."""
    servers = side.servers
    name = rng.choice(servers.bookies if kind.startswith("bookie") else servers.brokers)
    if kind.endswith("killed"):
        servers.kill(name)
        _pass_time(rng.choice((0.0, 0.0, 1.0)), cuts)
        servers.start(name)
    elif kind.endswith("paused"):
        side.pause(name)
        try:
            _pass_time(rng.choice(_PAUSES_S), cuts)
        finally:
            side.resume(name)
    elif kind == "link cut":
        cuts.cut(side.name, rng.choice(_CUTS_S))
    elif kind == "link dropped":
        cuts.stage.links.drop(side.name)
    else:
        side.unload(rng.choice(partitions()))


def _pass_time(seconds: float, cuts: _Cuts) -> None:
    threading.Event().wait(seconds)  # faults have their lengths
    cuts.mend()


def _settle(stage: Field, traffic: Traffic) -> tuple[dict[str, float], list[str]]:
    """Have everything come to its end; return how long each part took, s, and what did not."""
    sides = list(stage.sides.values())
    # What is acknowledged from now on at the other cluster is told to it, and by this one.
    traffic.stay()
    _wait_for_copies(traffic, _Cuts(stage))
    threading.Event().wait(_LAST_S)  # so much more is published
    took_s: dict[str, float] = {}
    problems: list[str] = []
    for name, is_so, why in (
        ("publishing", traffic.finish_publishing, lambda: "not everything has an answer"),
        ("copying", lambda: not _behind(stage), lambda: f"not copied: {_behind(stage)}"),
        ("consuming", traffic.is_consumed, lambda: "not everything was consumed"),
        (
            "agreeing",
            lambda: not any(_unacknowledged(sides)),
            lambda: f"the clusters do not agree what is acknowledged: {_unacknowledged(sides)}",
        ),
    ):
        began_s = time.monotonic()
        problems += _in_time(is_so, why)
        took_s[name] = round(time.monotonic() - began_s, 1)
        sys.stderr.write(f"{name} came to its end after {took_s[name]} s\n")
    return took_s, problems


def _behind(stage: Field) -> list[str]:
    return [
        each for side in stage.sides.values() for each in side.behind(stage.other(side.name).name)
    ]


def _unacknowledged(sides: Sequence[Side]) -> list[int]:
    """Messages that the moving subscription has left, by topic and cluster."""
    return [side.unacknowledged(topic, MOVES) for side in sides for topic in partitions()]


def _in_time(is_so: Callable[[], bool], why: Callable[[], str]) -> list[str]:
    try:
        wait_until(is_so, within_s=SETTLE_S)
    except AssertionError:
        return [why()]
    return []
