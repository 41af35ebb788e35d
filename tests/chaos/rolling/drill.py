"""The drill: a cluster is upgraded server by server under its clients, then goes back a step.

The order is that of docs/operations/upgrade.md: bookies, auto-recovery, brokers.
"""

import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from magnetar.deploy.errors import (
    DataDirectoryError,
    ForeignCookieError,
    UnreadableMetadataError,
)
from tests.chaos.cluster.checker import Counts, Windows, check
from tests.chaos.cluster.clients import NotRecoveredError
from tests.chaos.cluster.drill import excused_around, problems_logged
from tests.chaos.cluster.moves import moves_in
from tests.chaos.cluster.player import SINGLE
from tests.chaos.cluster.records import Records
from tests.chaos.cluster.stage import ProcessEndedError
from tests.chaos.rolling import stock
from tests.chaos.rolling.older import COMMIT, Older
from tests.chaos.rolling.stage import JOINS_LATER, SESSION_S, Stage, is_of_older
from tests.processes import ServerFailedError

GO_ON_TIMEOUT_S = 90.0
_MOVE_S = 3.0
"""Until clients are with the next owner of a topic."""
_DELAY_S = 900
"""For lost bookies, as the page for operators says."""
_TOLD_MAX = 1000
_PROBLEMS_SHOWN_MAX = 50
REFUSALS = (
    ForeignCookieError.exit_status,
    DataDirectoryError.exit_status,
    UnreadableMetadataError.exit_status,
)
"""Exit statuses of a server that does not know a format: of the cookie, of other files in its
directories, of the metadata."""


@dataclass(slots=True)
class Course:
    """How it went."""

    gaps_s: dict[str, float] = field(default_factory=dict)
    """By step: the longest time in which a producer was told nothing."""
    windows: list[tuple[float, float]] = field(default_factory=list)
    """Times whose acknowledgements may be lost."""
    refused: dict[str, str] = field(default_factory=dict)
    """Servers of the older code that did not start on what newer ones had stored: their words."""
    problems: list[str] = field(default_factory=list)
    is_aborted: bool = False


def run(directory: Path) -> dict[str, object]:
    """Play it and judge it; the result is one JSON object, with `ok` as the verdict.

    Raises:
        NoHistoryError: the older code cannot be had here.
    """
    started_s = time.monotonic()
    older = Older(directory / "older")
    older.check()
    course = Course()
    with Stage(directory, older_prefix=older.prefix) as stage:
        sys.stderr.write(f"the older cluster runs after {time.monotonic() - started_s:.0f} s\n")
        try:
            _play(stage, course)
        except (ProcessEndedError, NotRecoveredError, ServerFailedError, AssertionError) as error:
            course.problems.append(f"{type(error).__name__}: {error}")
            course.is_aborted = True
            sys.stderr.write(f"given up: {course.problems[-1]}\n")
        logs = stage.log_paths()
        # What the older code had to say of its own faults is no fault of the present one.
        for path in (*(each for each in logs if not is_of_older(each)), *stage.clients.log_paths()):
            course.problems += problems_logged(path)
        moves_s = list(moves_in(each for each in logs if each.name.startswith("broker")))
    sys.stderr.write(f"played for {time.monotonic() - started_s:.0f} s; judging\n")
    records = Records().load(stage.clients.histories, content_reader="finish", ordered=[SINGLE])
    course.problems += records.wrong
    counts = _judge(records, course, moves_s)
    return {
        "ok": not course.problems,
        "older": COMMIT,
        "publish_gaps_s": course.gaps_s,
        "refused_to_go_back": course.refused,
        **asdict(counts),
        "tried_again": dict(sorted(records.tried_again.items())),
        "seconds": round(time.monotonic() - started_s, 1),
        "problems": course.problems[:_PROBLEMS_SHOWN_MAX],
        "problems_found": len(course.problems),
    }


def _play(stage: Stage, course: Course) -> None:
    """All steps, with clients; then what lay there before.

    Raises:
        ProcessEndedError, NotRecoveredError, ServerFailedError, AssertionError
    """
    cluster = stage.cluster
    stock.fill(stage.http_url("broker-1"), cluster.service_url)
    # A message that is sent again after a reconnection must not be there twice.
    stock.deduplicate(stage.http_url("broker-1"), "public/default")
    before = stock.look(stage.http_url("broker-1"))
    stage.clients.start()
    stage.clients.wait_all_go_on(GO_ON_TIMEOUT_S, stage.pass_time)
    stage.magnetar("admin", "recovery", "delay", str(_DELAY_S))
    for name in ("bookie-1", "bookie-2", "bookie-3", "autorecovery-1", "broker-1", "broker-2"):
        _step(stage, course, f"{name} is upgraded", partial(stage.replace, name))
    _compare(stage, course, before, "after the upgrade")
    _step_back(stage, course, before)
    stage.magnetar("admin", "recovery", "delay", "--unset")
    course.problems += stage.clients.end()
    _compare(stage, course, before, "at the end")
    course.problems += stock.read_rest(cluster.service_url)
    stage.check_nobody_ended()


def _step_back(stage: Stage, course: Course, before: dict[str, Any]) -> None:
    """A bookie of the older code beside new ones, and one that was never of the older code; a
    broker beside a new one, then alone."""
    _step(stage, course, f"{JOINS_LATER} joins", partial(stage.start, JOINS_LATER))
    for name in ("bookie-1", JOINS_LATER):
        if _goes_back(stage, course, name):
            _step(stage, course, f"{name} is upgraded again", partial(stage.replace, name))
    if not _goes_back(stage, course, "broker-1"):
        return
    _step(stage, course, "broker-1 serves all alone", partial(stage.stop, "broker-2"))
    _compare(stage, course, before, "with the older broker", name="broker-1")
    _step(stage, course, "broker-2 starts", partial(stage.start, "broker-2"))
    _step(stage, course, "broker-1 is upgraded again", partial(stage.replace, "broker-1"))


def _goes_back(stage: Stage, course: Course, name: str) -> bool:
    """Give a server the older code again. False: it refused what it found, and is new once more.

    A server may refuse a newer format. It must say so: with the exit status of that.
    """

    def act() -> None:
        stage.stop(name)
        try:
            stage.start(name, older=True)
        except ServerFailedError as error:
            status = stage.cluster.process(name).returncode
            course.refused[name] = str(error)[-_TOLD_MAX:]
            if status not in REFUSALS:
                course.problems.append(f"{name} does not go back: status {status}, {error}")
            stage.start(name)

    _step(stage, course, f"{name} goes back", act)
    return name not in course.refused


def _compare(
    stage: Stage, course: Course, before: dict[str, Any], when: str, *, name: str = "broker-2"
) -> None:
    """Compare what lies there, as a broker says, with what there was."""
    found = stock.look(stage.http_url(name))
    course.problems += [f"{when}: {problem}" for problem in stock.missing(before, found)]


def _step(stage: Stage, course: Course, name: str, act: Callable[[], None]) -> None:
    """Do something to a server; then everybody must get further.

    Raises:
        ProcessEndedError, NotRecoveredError, ServerFailedError
    """
    watch = stage.clients.watch
    watch.look()
    lag_s = watch.longest_publish_gap_s()
    watch.forget_gaps()
    start_s = time.monotonic()
    act()
    over_s = time.monotonic()
    end_s = stage.clients.wait_all_go_on(GO_ON_TIMEOUT_S, stage.pass_time)
    gap_s = watch.longest_publish_gap_s()
    course.gaps_s[name] = round(gap_s, 2)
    course.windows.append(excused_around(start_s, max(end_s, over_s), lag_s=lag_s))
    sys.stderr.write(
        f"{name}: {over_s - start_s:.1f} s, all go on {max(0.0, end_s - over_s):.1f} s later, "
        f"longest publish gap {gap_s:.2f} s\n"
    )


def _judge(records: Records, course: Course, moves_s: list[float]) -> Counts:
    """Judge the histories; problems go to `course`. A drill that was given up has no end to see."""
    around_moves = (excused_around(at_s, at_s + _MOVE_S, lag_s=SESSION_S) for at_s in moves_s)
    excused = Windows([*course.windows, *around_moves])
    counts = Counts()
    if course.is_aborted:
        return counts
    for history in records.histories.values():
        found, counted = check(history, excused)
        course.problems += [f"{each.kind}: {each.text}" for each in found]
        counts += counted
    if counts.copies:
        course.problems.append(f"{counts.copies} messages are in their topics twice")
    return counts
