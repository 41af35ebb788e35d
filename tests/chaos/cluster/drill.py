"""The drill: a cluster, clients all the time, fault after fault, then the judgement."""

import random
import statistics
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path

from tests.chaos.cluster.checker import Counts, Windows, check
from tests.chaos.cluster.clients import NotRecoveredError
from tests.chaos.cluster.faults import FAULTS, Scene
from tests.chaos.cluster.field import open_field
from tests.chaos.cluster.lookups import NoOwnerError
from tests.chaos.cluster.moves import moves_in
from tests.chaos.cluster.player import SINGLE
from tests.chaos.cluster.records import Records
from tests.chaos.cluster.replication import Replication, count_copies, wait_whole
from tests.chaos.cluster.stage import (
    ACK_PERSIST_S,
    SESSION_S,
    ProcessEndedError,
    Stage,
)
from tests.chaos.cluster.witness import NotOpenedError
from tests.processes import ServerFailedError

RECOVERY_TIMEOUT_S = 90.0
_WHOLE_TIMEOUT_S = 120.0
_ACK_SLACK_S = 0.6
"""The client groups acknowledgements for 0.1 s; a record takes a moment to write."""
_MOVE_S = 3.0
"""Until clients are with the next owner of a topic."""
_EXCEPTION_MARKS = ("Traceback", '"exc_type"', "never retrieved", "Exception in callback")
_PROBLEMS_SHOWN_MAX = 50


@dataclass(frozen=True, slots=True)
class Plan:
    """What a drill is made of; the seed decides about order, victims and durations."""

    seed: int
    faults: Mapping[str, int]
    """How often each."""
    zookeepers: int = 1
    brokers: int = 2
    bookies: int = 4
    topics: int = 3
    autorecovery: int = 1
    network: str = ""
    """"namespaces" or "proxies"; empty: what can be had."""


@dataclass(slots=True)
class Course:
    """How it went."""

    gaps_s: dict[str, list[float]] = field(default_factory=dict)
    """By fault: the longest time in which a producer was told nothing."""
    windows: list[tuple[float, float]] = field(default_factory=list)
    """Times whose acknowledgements may be lost."""
    problems: list[str] = field(default_factory=list)
    is_aborted: bool = False
    replication: Replication = field(default_factory=Replication)


def run(plan: Plan, directory: Path) -> dict[str, object]:
    """Play it and judge it; the result is one JSON object, with `ok` as the verdict."""
    started_s = time.monotonic()
    directory.mkdir(parents=True, exist_ok=True)
    course = Course()
    with (
        open_field(plan.network) as ground,
        Stage(
            directory,
            ground,
            zookeepers=plan.zookeepers,
            brokers=plan.brokers,
            bookies=plan.bookies,
            topics=plan.topics,
            autorecovery=plan.autorecovery,
        ) as stage,
    ):
        sys.stderr.write(f"everything runs after {time.monotonic() - started_s:.0f} s\n")
        try:
            _play(plan, stage, course)
        except (ProcessEndedError, NotRecoveredError, ServerFailedError) as error:
            course.problems.append(f"{type(error).__name__}: {error}")
            course.is_aborted = True
            sys.stderr.write(f"given up: {course.problems[-1]}\n")
        course.problems += [
            problem for path in stage.log_paths() for problem in problems_logged(path)
        ]
        moves_s = list(moves_in(map(stage.cluster.log_path, stage.brokers)))
    sys.stderr.write(f"played for {time.monotonic() - started_s:.0f} s; judging\n")
    records = Records().load(stage.histories, content_reader="finish", ordered=[SINGLE])
    course.problems += records.wrong + course.replication.problems
    during_faults = Windows(course.windows)
    moves_s = [at_s for at_s in moves_s if at_s not in during_faults]
    counts = _judge(records, course, moves_s)
    return {
        "ok": not course.problems,
        "seed": plan.seed,
        "network": ground.kind,
        "zookeepers": plan.zookeepers,
        "brokers": plan.brokers,
        "bookies": plan.bookies,
        "faults": {
            name: {
                "times": len(gaps),
                "publish_gap_s_median": round(statistics.median(gaps), 2),
                "publish_gap_s_max": round(max(gaps), 2),
            }
            for name, gaps in sorted(course.gaps_s.items())
        },
        "moves_without_a_fault": len(moves_s),
        **asdict(counts),
        "tried_again": dict(sorted(records.tried_again.items())),
        "ledgers_closed": course.replication.ledgers,
        "entries_in_closed_ledgers": course.replication.entries,
        "entries_short_of_copies": course.replication.short,
        "seconds": round(time.monotonic() - started_s, 1),
        "problems": course.problems[:_PROBLEMS_SHOWN_MAX],
        "problems_found": len(course.problems),
    }


def _play(plan: Plan, stage: Stage, course: Course) -> None:
    """All faults, the end of the clients, and a look at the copies.

    Raises:
        ProcessEndedError, NotRecoveredError, ServerFailedError
    """
    _strike(plan, stage, course)
    course.problems += stage.end()
    if plan.autorecovery:
        missing = wait_whole(stage, timeout_s=_WHOLE_TIMEOUT_S)
        if missing:
            course.problems.append(f"copies are missing: {missing}")
        course.replication = count_copies(stage)
    stage.check_nobody_ended()


def _judge(records: Records, course: Course, moves_s: list[float]) -> Counts:
    """The histories; problems go to `course`. An aborted drill did not look what there is."""
    excused = Windows(
        [
            *course.windows,
            *(excused_around(at_s, at_s + _MOVE_S, lag_s=SESSION_S) for at_s in moves_s),
        ]
    )
    counts = Counts()
    if not course.is_aborted:
        for history in records.histories.values():
            found, counted = check(history, excused)
            course.problems += [f"{each.kind}: {each.text}" for each in found]
            counts += counted
    return counts


def _strike(plan: Plan, stage: Stage, course: Course) -> None:
    """All faults in random order; after each, everybody must get further.

    Raises:
        ProcessEndedError, NotRecoveredError
    """
    source = random.Random(plan.seed)
    names = [name for name, times in plan.faults.items() for _ in range(times)]
    source.shuffle(names)
    for number, name in enumerate(names, start=1):
        stage.pass_time(source.uniform(0.3, 3))
        stage.watch.look()
        lag_s = stage.watch.longest_publish_gap_s()
        stage.watch.forget_gaps()
        scene = Scene(stage, random.Random(source.getrandbits(31)), number)
        start_s = time.monotonic()
        try:
            FAULTS[name].strike(scene)
        except (NoOwnerError, NotOpenedError) as error:
            scene.problems.append(f"{type(error).__name__}: {error}")
        over_s = time.monotonic()
        end_s = stage.wait_all_go_on(RECOVERY_TIMEOUT_S)
        gap_s = stage.watch.longest_publish_gap_s()
        course.gaps_s.setdefault(name, []).append(gap_s)
        if FAULTS[name].may_lose_acks:
            course.windows.append(excused_around(start_s, max(end_s, over_s), lag_s=lag_s))
        stage.watch.forget_gaps()
        course.problems += [f"{name}, number {number}: {text}" for text in scene.problems]
        sys.stderr.write(
            f"{number:3} of {len(names)} at {start_s:.1f} {name:<26} {over_s - start_s:5.1f} s, "
            f"all go on "
            f"{max(0.0, end_s - over_s):5.1f} s later, longest publish gap {gap_s:5.2f} s"
            f"{'; the old owner said: ' + scene.told if scene.told else ''}"
            f"{'  PROBLEM ' + '; '.join(scene.problems) if scene.problems else ''}\n"
        )


def excused_around(start_s: float, end_s: float, *, lag_s: float) -> tuple[float, float]:
    """Acknowledgements of this time may be lost when something happens in that time.

    Args:
        lag_s: how long a write may have taken just before, on a machine with too much to do.
    """
    return start_s - ACK_PERSIST_S - _ACK_SLACK_S - lag_s, end_s + _ACK_SLACK_S


def problems_logged(path: Path) -> Iterator[str]:
    """Tell of the first traceback in a log, if there is one."""
    text = path.read_text(errors="replace") if path.exists() else ""
    for mark in _EXCEPTION_MARKS:
        at = text.find(mark)
        if at >= 0:
            yield f"{path.name} holds: {text[max(0, at - 300) : at + 2000]}"
            return
