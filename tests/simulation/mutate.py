"""Whether every rule is needed: each is switched off, and random runs must notice.

`python -m tests.simulation.mutate [--runs N] [--only NAME] [--write] [--anew]`, or `make
mutations`. For each mutation the plan that noticed it last, then those of seeds 0, 1, 2, ... are
run until an invariant does not hold; the same plan must pass with the rule on. `--write` puts the
table into docs/simulation.md, and the plan that caught each mutation into mutations/caught.json,
which `test_mutations.py` replays.

Some rules guard against what no plan does (megabytes of entries, an operator who gives an empty
machine an old identity). They are caught by the scripted test of their defect, and where a search
has found no plan, the next ones are short, but for `--anew`.
"""

import argparse
import importlib
import json
import multiprocessing
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from inspect import signature
from pathlib import Path

import pytest

from tests.simulation.drawing import draw
from tests.simulation.mutations.catching import caught_by
from tests.simulation.mutations.elsewhere import failing_elsewhere
from tests.simulation.mutations.mutation import Mutation
from tests.simulation.mutations.registry import MUTATIONS, mutation
from tests.simulation.plan import Plan
from tests.simulation.record import INVARIANTS
from tests.simulation.run import Outcome, execute

RUNS_MAX = 2000
CAUGHT = Path(__file__).with_name("mutations") / "caught.json"
DOCUMENT = Path(__file__).parents[2] / "docs" / "simulation.md"
_BEGIN, _END = "<!-- mutations: begin -->", "<!-- mutations: end -->"
_HOPELESS_RUNS = 100
"""For mutations that name no invariant, since only a scripted test does what they need, and for
those that scripted tests notice, and that no search has found a plan for."""


@dataclass(frozen=True, slots=True)
class Catch:
    """What noticed that a rule was off."""

    name: str
    reasons: tuple[str, ...] = ()
    """The invariants that do not hold, or the kind of the error that ended the run."""
    runs: int = 0
    """How many plans were run, the one that failed included."""
    plan: Plan | None = None
    tests: tuple[str, ...] = ()
    """Scripted tests of its defects that fail."""

    @property
    def is_caught(self) -> bool:
        return self.plan is not None or bool(self.tests)


def search(name: str, runs_max: int, known: Catch | None = None) -> Catch:
    """Run plans with the rule off until one fails. `known`: what the last search found;
    its plan comes first, and where it found none there are few runs."""
    found = mutation(name)
    tests = failing_stories(found) + failing_elsewhere(found)
    if not found.invariants or (tests and known is not None and known.plan is None):
        runs_max = min(runs_max, _HOPELESS_RUNS)
    by_error: Catch | None = None
    if known is not None and known.plan is not None:
        again = caught_by(found, known.plan, execute)
        if again is not None:
            return replace(known, reasons=_reasons(again), tests=tests)
    plans = (draw(seed) for seed in range(runs_max))
    for runs, plan in enumerate(plans, start=1):
        outcome = caught_by(found, plan, execute)
        if outcome is None:
            continue
        catch = Catch(name, _reasons(outcome), runs, plan, tests)
        if outcome.violations:
            return catch
        by_error = by_error or catch  # an assertion of the program: an invariant says more
    return by_error or Catch(name, (), runs_max, None, tests)


def _reasons(outcome: Outcome) -> tuple[str, ...]:
    order = list(INVARIANTS)
    known = sorted(
        {violation.invariant for violation in outcome.violations},
        key=lambda each: order.index(each),
    )
    return tuple(known) or tuple(sorted(outcome.reasons))


def failing_stories(found: Mutation) -> tuple[str, ...]:
    """The scripted tests of the mutation's defects that fail with its rule off."""
    failing = []
    for story in stories(found):
        with found.apply():
            try:
                story()
            except _BUGS as error:
                raise AssertionError(f"{found.name} does not fit the code: {error!r}") from error
            except (Exception, pytest.fail.Exception):  # noqa: BLE001  # however: it has noticed
                failing.append(story.__name__)
    return tuple(failing)


_BUGS = (NameError, TypeError, AttributeError)


def stories(found: Mutation) -> list[Callable[[], None]]:
    """The scripted tests of the mutation's defects, as functions without arguments."""
    made: list[Callable[[], None]] = []
    for defect in found.defects:
        prefix = f"test_{defect[0].lower()}{int(defect[1:]):02}_"  # "D5", "M1"
        for path in sorted(Path(__file__).parent.glob(f"{prefix}*.py")):
            module = importlib.import_module(f"tests.simulation.{path.stem}")
            for name, value in vars(module).items():
                if name.startswith("test_") and not signature(value).parameters:
                    made.append(value)
    return made


# Command line


def _search(task: tuple[str, int, Catch | None]) -> tuple[Catch, str]:
    name, runs_max, known = task
    before_s = time.perf_counter()
    try:
        catch = search(name, runs_max, known)
    except AssertionError as error:
        return Catch(name), f"BROKEN {str(error)[:300]}"
    return catch, f"{_line(catch)}  [{time.perf_counter() - before_s:.1f} s]"


def main(arguments: list[str]) -> int:
    """Search for all mutations; the exit status says whether each was caught."""
    parser = argparse.ArgumentParser(prog="mutate", description=__doc__)
    parser.add_argument("--runs", type=int, default=RUNS_MAX, help="plans per mutation")
    parser.add_argument("--only", default="", help="mutations whose name contains this")
    parser.add_argument("--jobs", type=int, default=multiprocessing.cpu_count())
    parser.add_argument("--write", action="store_true", help="write the table and the plans")
    parser.add_argument(
        "--anew",
        action="store_true",
        help="search also where a plan is known, or known not to be found",
    )
    options = parser.parse_args(arguments)
    names = [each.name for each in MUTATIONS if options.only in each.name]
    stored = {} if options.anew else load()
    catches: dict[str, Catch] = {}
    with multiprocessing.get_context("spawn").Pool(options.jobs) as pool:
        tasks = [(name, options.runs, stored.get(name)) for name in names]
        for catch, text in pool.imap_unordered(_search, tasks):
            catches[catch.name] = catch
            _say(text)
    if options.write:
        write(catches)
    missed = [name for name in names if not catches[name].is_caught]
    _say(f"{len(names) - len(missed)} of {len(names)} mutations are caught")
    for name in missed:
        _say(f"NOT CAUGHT: {name}")
    return 1 if missed else 0


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def _line(catch: Catch) -> str:
    if catch.plan is not None:
        how = f"{', '.join(catch.reasons)} after {catch.runs} runs"
    else:
        how = f"not by {catch.runs} runs"
    return f"{catch.name}: {how}; tests: {len(catch.tests)}"


# What is written


def load() -> dict[str, Catch]:
    """The catches that are stored."""
    if not CAUGHT.exists():
        return {}
    catches = {}
    for name, value in json.loads(CAUGHT.read_text()).items():
        plan = value["plan"] and Plan.from_json(json.dumps(value["plan"]))
        catches[name] = Catch(
            name, tuple(value["reasons"]), value["runs"], plan, tuple(value["tests"])
        )
    return catches


def write(catches: dict[str, Catch]) -> None:
    """Store the catches beside those that are stored, and write the table of all."""
    stored = load()
    for name, catch in catches.items():
        known = stored.get(name)
        if known is not None and known.plan is None and catch.plan is None:
            catch = replace(catch, runs=max(catch.runs, known.runs))
        stored[name] = catch
    values = {
        each.name: {
            "reasons": stored[each.name].reasons,
            "runs": stored[each.name].runs,
            "tests": stored[each.name].tests,
            "plan": asdict(plan) if (plan := stored[each.name].plan) is not None else None,
        }
        for each in MUTATIONS
        if each.name in stored
    }
    lines = [f"{json.dumps(name)}: {json.dumps(value)}" for name, value in values.items()]
    CAUGHT.write_text("{\n" + ",\n".join(lines) + "\n}\n")
    text = DOCUMENT.read_text() if DOCUMENT.exists() else ""
    if _BEGIN not in text:
        text += f"\n{_BEGIN}\n{_END}\n"
    before, _, rest = text.partition(_BEGIN)
    _, _, after = rest.partition(_END)
    DOCUMENT.write_text(f"{before}{_BEGIN}\n{table(stored)}{_END}{after}")


def table(catches: dict[str, Catch]) -> str:
    """The table of mutations, in the order of the registry."""
    lines = [
        "| Mutation | Rule | Defects | Caught by | After runs | Scripted tests that fail |",
        "|---|---|---|---|---|---|",
    ]
    for each in MUTATIONS:
        catch = catches.get(each.name)
        if catch is None:
            continue
        reasons, runs = ", ".join(catch.reasons), str(catch.runs)
        if catch.plan is None:
            reasons = "its scripted test" if catch.tests else "**nothing**"
            runs = f"not in {catch.runs}"
        lines.append(
            f"| `{each.name}`: {each.description} | {each.rule} | "
            f"{', '.join(each.defects) or '-'} | {reasons} | {runs} | {len(catch.tests) or '-'} |"
        )
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
