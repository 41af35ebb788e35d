"""The search for what notices that a rule is off: one class and one command for all simulators.

A search says what it searches: the mutations, how plans are drawn and run, and where the catches
are stored. The plan that noticed a mutation last is tried first, then drawn ones, until one fails
with the rule off and passes with it on.
"""

import argparse
import importlib
import json
import multiprocessing
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from inspect import signature
from itertools import count, islice
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

import pytest

from tests.simulation.mutations.catching import Outcome, caught_by, check_fits
from tests.simulation.mutations.elsewhere import failing_elsewhere
from tests.simulation.mutations.mutation import Mutation

DOCUMENT = Path(__file__).parents[3] / "docs" / "simulation.md"
_SIMULATION = Path(__file__).parents[1]
_BUGS = (NameError, TypeError, AttributeError)


class Violation(Protocol):
    @property
    def invariant(self) -> str: ...


class Ended(Outcome, Protocol):
    """How a run has ended, and why it failed."""

    @property
    def violations(self) -> Sequence[Violation]: ...
    @property
    def reasons(self) -> frozenset[str]: ...


P = TypeVar("P")


class Caught(Protocol):
    """What a search has found for one mutation."""

    @property
    def name(self) -> str: ...
    @property
    def is_caught(self) -> bool: ...


@dataclass(frozen=True, slots=True)
class Catch(Generic[P]):
    """What noticed that a rule was off."""

    name: str
    reasons: tuple[str, ...] = ()
    """The invariants that do not hold, or the kind of the error that ended the run."""
    runs: int = 0
    """How many plans were run, the one that failed included."""
    plan: P | None = None
    tests: tuple[str, ...] = ()
    """Stories of its defects that fail, scripted for them."""

    @property
    def is_caught(self) -> bool:
        return self.plan is not None or bool(self.tests)


@dataclass(frozen=True)
class Search(Generic[P]):
    """A search in plans: one counts if it breaks an invariant that the mutation names."""

    mutations: Sequence[Mutation]
    draw: Callable[[int], P]
    execute: Callable[[P], Ended]
    parse: Callable[[str], P]
    caught: Path
    """The file with the catches; the tests replay them."""
    section: str
    """Of docs/simulation.md, between comments: the table."""
    may_notice: Callable[[str, P], bool] = lambda name, plan: True
    """Whether a plan has what the rule is about: others are not run."""

    def attempt(self, task: "Task[P]") -> tuple[Catch[P], str]:
        """Search for one mutation; the second value is a line of text about it."""
        before_s = time.perf_counter()
        try:
            catch = self.search(task)
        except AssertionError as error:
            return Catch(task.name), f"BROKEN {task.name}: {str(error)[:300]}"
        how = f"not by {catch.runs} runs"
        if catch.plan is not None:
            how = f"{', '.join(catch.reasons)} after {catch.runs} runs"
        tests = f"; stories: {len(catch.tests)}" if catch.tests else ""
        return catch, f"{catch.name}: {how}{tests}  [{time.perf_counter() - before_s:.1f} s]"

    def search(self, task: "Task[P]") -> Catch[P]:
        """
        Raises:
            AssertionError: the mutation does not fit the code any more.
        """
        found, known = self.mutation(task.name), task.known
        if known is not None and known.plan is not None:
            reasons = self._broken_by(found, known.plan)
            if reasons:
                return replace(known, reasons=reasons)
        drawn = (
            plan
            for seed in count(task.start)
            if self.may_notice(found.name, plan := self.draw(seed))
        )
        for runs, plan in enumerate(islice(drawn, task.runs_max), start=1):
            reasons = self._broken_by(found, plan)
            if reasons:
                return Catch(found.name, reasons, runs, plan)
        return Catch(found.name, (), task.runs_max)

    def _broken_by(self, found: Mutation, plan: P) -> tuple[str, ...]:
        with found.apply():
            outcome = self.execute(plan)
        check_fits(found, outcome)
        broken = outcome.reasons & set(found.invariants)
        return tuple(sorted(broken)) if broken and not self.execute(plan).has_failed else ()

    def mutation(self, name: str) -> Mutation:
        return next(each for each in self.mutations if each.name == name)

    # What is stored

    def load(self) -> dict[str, Catch[P]]:
        """The catches that are stored."""
        if not self.caught.exists():
            return {}
        catches = {}
        for name, value in json.loads(self.caught.read_text()).items():
            plan = value["plan"] and self.parse(json.dumps(value["plan"]))
            reasons, tests = tuple(value["reasons"]), tuple(value.get("tests", ()))
            catches[name] = Catch(name, reasons, value["runs"], plan, tests)
        return catches

    def write(self, catches: Mapping[str, Catch[P]]) -> None:
        """Store the catches beside those that are stored, and write the table of all."""
        stored = self.load()
        for name, catch in catches.items():
            known = stored.get(name)
            if known is not None and known.plan is None and catch.plan is None:
                catch = replace(catch, runs=max(catch.runs, known.runs))
            stored[name] = catch
        names = [each.name for each in self.mutations if each.name in stored]
        store(self.caught, {name: self._value(stored[name]) for name in names})
        put_into_document(self.section, self.table(stored))

    def _value(self, catch: Catch[P]) -> dict[str, Any]:
        value = asdict(catch)
        return {name: value[name] for name in ("reasons", "runs", "plan")}

    def table(self, catches: Mapping[str, Catch[P]]) -> str:
        """The table of mutations, in the order of the registry."""
        columns = self._columns()
        rows = []
        for each in self.mutations:
            if each.name in catches:
                rows.append(" | ".join(self._cells(each, catches[each.name])))
        head = f"| {' | '.join(columns)} |\n|{'---|' * len(columns)}\n"
        return head + "".join(f"| {row} |\n" for row in rows)

    def _columns(self) -> tuple[str, ...]:
        return ("Mutation", "Rule", "Caught by", "After runs")

    def _cells(self, found: Mutation, catch: Catch[P]) -> tuple[str, ...]:
        by, runs = ", ".join(catch.reasons), str(catch.runs)
        if catch.plan is None:
            by, runs = "**nothing**", f"not in {catch.runs}"
        return (f"`{found.name}`: {found.description}", found.rule, by, runs)


@dataclass(frozen=True, slots=True)
class Task(Generic[P]):
    """What one process searches for."""

    name: str
    runs_max: int
    start: int = 0
    """Number of the first plan that is drawn."""
    known: Catch[P] | None = None
    """What the last search found; its plan comes first."""


@dataclass(frozen=True)
class StorySearch(Search[P]):
    """A search in stories and in plans: one counts if anything fails.

    Some rules guard against what no plan does (megabytes of entries, an operator who gives an empty
    machine an old identity). Where stories notice, and the last search has found no plan, this one
    is short.
    """

    stories_in: str = ""
    """The package of the stories: `test_d05_...` are those of defect D5, `test_r05_...` those of
    invariant R5."""
    stories_called: str = "Stories"
    hopeless_runs: int = 100
    """Where stories notice, and no search has found a plan."""
    runs_without_invariant: int = 100
    """For mutations that name no invariant, since only a story does what they need."""
    order: Sequence[str] = ()
    """Of the invariants, as they are named in the table; others by their names."""

    def search(self, task: Task[P]) -> Catch[P]:
        found, known, runs_max = self.mutation(task.name), task.known, task.runs_max
        tests = self.failing_stories(found) + failing_elsewhere(found)
        if not found.invariants:
            runs_max = min(runs_max, self.runs_without_invariant)
        elif tests and known is not None and known.plan is None:
            runs_max = min(runs_max, self.hopeless_runs)
        if known is not None and known.plan is not None:
            again = caught_by(found, known.plan, self.execute)
            if again is not None:
                return replace(known, reasons=self._reasons(again), tests=tests)
        by_error: Catch[P] | None = None
        for runs in range(1, runs_max + 1):
            plan = self.draw(task.start + runs - 1)
            outcome = caught_by(found, plan, self.execute)
            if outcome is None:
                continue
            catch = Catch(found.name, self._reasons(outcome), runs, plan, tests)
            if outcome.violations:
                return catch
            by_error = by_error or catch  # an assertion of the program: an invariant says more
        return by_error or Catch(found.name, (), runs_max, None, tests)

    def _reasons(self, outcome: Ended) -> tuple[str, ...]:
        broken = sorted({violation.invariant for violation in outcome.violations})
        if self.order:
            broken.sort(key=self.order.index)
        return tuple(broken) or tuple(sorted(outcome.reasons))

    def failing_stories(self, found: Mutation) -> tuple[str, ...]:
        """The stories of the mutation's defects that fail with its rule off."""
        failing = []
        for story in self.stories(found):
            with found.apply():
                try:
                    story()
                except _BUGS as error:
                    raise AssertionError(
                        f"{found.name} does not fit the code: {error!r}"
                    ) from error
                except (Exception, pytest.fail.Exception):  # noqa: BLE001  # it has noticed
                    failing.append(story.__name__)
        return tuple(failing)

    def stories(self, found: Mutation) -> list[Callable[[], None]]:
        """The stories of the mutation's defects, as functions without arguments."""
        made: list[Callable[[], None]] = []
        folder = Path(*self.stories_in.split("."))
        for defect in found.defects:
            prefix = f"test_{defect[0].lower()}{int(defect[1:]):02}_"  # "D5", "M1"
            for path in sorted((_SIMULATION.parents[1] / folder).glob(f"{prefix}*.py")):
                module = importlib.import_module(f"{self.stories_in}.{path.stem}")
                for name, value in vars(module).items():
                    if name.startswith("test_") and not signature(value).parameters:
                        made.append(value)
        return made

    def _value(self, catch: Catch[P]) -> dict[str, Any]:
        value = asdict(catch)
        return {name: value[name] for name in ("reasons", "runs", "tests", "plan")}

    def _columns(self) -> tuple[str, ...]:
        first, rule, by, runs = super()._columns()
        return (first, rule, "Defects", by, runs, f"{self.stories_called} that fail")

    def _cells(self, found: Mutation, catch: Catch[P]) -> tuple[str, ...]:
        first, rule, by, runs = super()._cells(found, catch)
        if catch.plan is None:
            by = f"its {self.stories_called.lower()}" if catch.tests else by
            runs = runs if catch.runs else "-"
        defects = ", ".join(found.defects) or "-"
        return (first, rule, defects, by, runs, str(len(catch.tests) or "-"))


# The command


def command(
    search: Search[P],
    attempt: Callable[[Task[P]], tuple[Catch[P], str]],
    arguments: Sequence[str],
    *,
    about: str | None,
    runs: int,
) -> int:
    """Search for all mutations; the exit status says whether each was caught.

    `attempt`: `search.attempt`, as a function that another process finds by its name.
    """
    parser = parser_of(about)
    parser.add_argument("--runs", type=int, default=runs, help="plans per mutation")
    parser.add_argument("--start", type=int, default=0, help="number of the first plan")
    options = parser.parse_args(arguments)
    stored = {} if options.anew else search.load()
    tasks = [
        Task(each.name, options.runs, options.start, stored.get(each.name))
        for each in search.mutations
        if options.only in each.name
    ]
    catches, status = attempt_all(tasks, attempt, options.jobs)
    if options.write:
        search.write(catches)
    return status


def parser_of(about: str | None) -> argparse.ArgumentParser:
    """What all searches take."""
    parser = argparse.ArgumentParser(prog="make mutations", description=about)
    parser.add_argument("--only", default="", help="mutations whose name contains this")
    parser.add_argument("--jobs", type=int, default=multiprocessing.cpu_count())
    parser.add_argument("--write", action="store_true", help="write the table and the catches")
    parser.add_argument(
        "--anew", action="store_true", help="search also where it is known what notices, or nothing"
    )
    return parser


T = TypeVar("T")
C = TypeVar("C", bound=Caught)


def attempt_all(
    tasks: Iterable[T],
    attempt: Callable[[T], tuple[C, str]],
    jobs: int,
    then: Callable[[C], None] = lambda catch: None,
) -> tuple[dict[str, C], int]:
    """Attempt all tasks in processes, and say what each gave; `then`: what is done with each.
    Returned are the catches by name, and an exit status."""
    catches: dict[str, C] = {}
    with multiprocessing.get_context("spawn").Pool(jobs) as pool:
        for catch, text in pool.imap_unordered(attempt, tasks):
            catches[catch.name] = catch
            _say(text)
            then(catch)
    missed = sorted(name for name, catch in catches.items() if not catch.is_caught)
    _say(f"{len(catches) - len(missed)} of {len(catches)} mutations are caught")
    for name in missed:
        _say(f"NOT CAUGHT: {name}")
    return catches, 1 if missed else 0


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def store(path: Path, values: Mapping[str, object]) -> None:
    """Write JSON with one line per name, so that a change of one is a line of a diff."""
    lines = [f"{json.dumps(name)}: {json.dumps(value)}" for name, value in values.items()]
    path.write_text("{\n" + ",\n".join(lines) + "\n}\n")


def put_into_document(section: str, table: str) -> None:
    """Put a table between the two comments of its section."""
    begin, end = f"<!-- {section}: begin -->", f"<!-- {section}: end -->"
    before, _, rest = DOCUMENT.read_text().partition(begin)
    _, _, after = rest.partition(end)
    DOCUMENT.write_text(f"{before}{begin}\n{table}{end}{after}")
