"""The drill: a cluster of real processes at full speed, kills and pauses, then the judgement."""

import asyncio
import random
import sys
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.chaos.nemesis import Nemesis, Toll
from tests.chaos.recover import ORPHANS
from tests.chaos.troupe import Role, Troupe
from tests.chaos.verdict import Verdict, judge
from tests.processes import HOST
from tests.zookeeper_fixture import ZooKeeper

_EXCEPTION_MARKS = ("Traceback", '"exc_type"', "never retrieved", "Exception in callback")
_PROBLEMS_SHOWN_MAX = 50


@dataclass(frozen=True, slots=True)
class Plan:
    """What a drill is made of; the seed decides who is struck and in which order."""

    seed: int
    strikes: int
    bookies: int = 5
    writers: int = 3
    metadata: str = "embedded"
    """Or "zookeeper": a real server."""
    disk_full: bool = False
    """Bookies have small disks, which are filled as well."""


def run(plan: Plan, directory: Path) -> dict[str, object]:
    """Play it and judge it; the result is one JSON object, with `ok` as the verdict."""
    started_s = time.monotonic()
    directory.mkdir(parents=True, exist_ok=True)
    (directory / ORPHANS).mkdir()
    with _metadata(plan, directory) as metadata_url:
        troupe = Troupe(
            directory,
            metadata_url,
            bookies=plan.bookies,
            writers=plan.writers,
            seed=plan.seed,
            small_disks_for=plan.strikes if plan.disk_full else None,
        )
        with closing(troupe):
            troupe.start()
            nemesis = Nemesis(troupe, directory, random.Random(plan.seed))
            toll = nemesis.strike(plan.strikes)
            for role in troupe.bookies:
                role.wait_ready()
            problems = nemesis.end_in_want_of_room() if plan.disk_full else []
            problems += _end_clients(troupe)
            played_s = time.monotonic() - started_s
            sys.stderr.write(f"played for {played_s:.0f} s; judging\n")
            ports = {f"{HOST}:{bookie.port}": bookie.port for bookie in troupe.bookies}
            verdict = asyncio.run(judge(metadata_url, directory, ports))
    problems += [problem for role in troupe.roles for problem in _problems_logged(role)]
    return _result(plan, toll, verdict, problems, time.monotonic() - started_s)


@contextmanager
def _metadata(plan: Plan, directory: Path) -> Iterator[str]:
    if plan.metadata == "embedded":
        yield f"embedded:{directory / 'metadata.db'}"
        return
    server = ZooKeeper(directory)
    server.start()
    try:
        yield f"{server.url}/drill"
    finally:
        server.stop()


def _end_clients(troupe: Troupe) -> list[str]:
    """SIGTERM to all clients: writers close what they have. Whoever cannot end is a finding."""
    problems: list[str] = []
    for role in troupe.clients:
        try:
            role.wait_ready()
            role.terminate()
        except Exception as error:  # noqa: BLE001  # the verdict names it
            problems.append(f"{role.name} could not be ended in an orderly way: {error}")
    return problems


def _problems_logged(role: Role) -> Iterator[str]:
    text = role.log_path.read_text()
    for mark in _EXCEPTION_MARKS:
        at = text.find(mark)
        if at >= 0:
            yield f"the log of {role.name} holds: {text[max(0, at - 300) : at + 2000]}"
            return


def _result(
    plan: Plan, toll: Toll, verdict: Verdict, problems: list[str], seconds: float
) -> dict[str, object]:
    problems = verdict.problems + problems
    return {
        "ok": not problems,
        "seed": plan.seed,
        "metadata": plan.metadata,
        "kills": toll.kills,
        "pauses": toll.pauses,
        "disks_filled": toll.fills,
        "starts_refused_for_want_of_room": toll.refused_starts,
        "adds_refused": dict(sorted(verdict.refusals.items())),
        "fences_checked": verdict.fences,
        "takeovers": toll.takeovers,
        "ledgers": verdict.ledgers,
        "closed_by": dict(sorted(verdict.closed_by.items())),
        "fragments": verdict.fragments,
        "entries_acknowledged": verdict.acknowledged,
        "entries_kept_beyond": verdict.kept_beyond,
        "entries_short_of_copies": verdict.short_of_copies,
        "copies_missing_unrecorded": verdict.missing_unrecorded,
        "entries_read_by_readers": verdict.read_by_readers,
        "seconds": round(seconds, 1),
        "problems": problems[:_PROBLEMS_SHOWN_MAX],
        "problems_found": len(problems),
    }
