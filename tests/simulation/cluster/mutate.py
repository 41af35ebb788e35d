"""Whether every rule of brokers and auto-recovery is needed: each is switched off, and must fail.

`python -m tests.simulation.cluster.mutate [--runs N] [--only NAME] [--write] [--anew]`, or `make
mutations CLUSTER=1`. First the stories of the rule's defects are told with the rule off, then the
plan that noticed it last and plans of many seeds, plain ones and busy ones in turn, are run until
an invariant does not hold; the same plan must pass with the rule on. Where stories notice, and no
search has found a plan so far, there are only a few runs, but for `--anew`. `--write` puts the
table into docs/simulation.md, and what caught each mutation into mutations/caught.json, which
`test_mutations.py` replays.
"""

import argparse
import importlib
import json
import multiprocessing
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from inspect import signature
from pathlib import Path

import pytest

from tests.simulation.cluster.drawing import draw, searched
from tests.simulation.cluster.mutations.registry import MUTATIONS, mutation
from tests.simulation.cluster.plan import ClusterPlan
from tests.simulation.cluster.run import ClusterOutcome, execute
from tests.simulation.mutations.catching import caught_by
from tests.simulation.mutations.elsewhere import failing_elsewhere
from tests.simulation.mutations.mutation import Mutation

RUNS_MAX = 200
_HOPELESS_RUNS = 20
"""For mutations that stories notice, and that no search has found a plan for."""
CAUGHT = Path(__file__).with_name("mutations") / "caught.json"
DOCUMENT = Path(__file__).parents[3] / "docs" / "simulation.md"
_BEGIN, _END = "<!-- cluster mutations: begin -->", "<!-- cluster mutations: end -->"
_BUGS = (NameError, TypeError, AttributeError)


@dataclass(frozen=True, slots=True)
class Catch:
    """What noticed that a rule was off."""

    name: str
    reasons: tuple[str, ...] = ()
    runs: int = 0
    plan: ClusterPlan | None = None
    tests: tuple[str, ...] = ()
    """Stories of its defects that fail."""

    @property
    def is_caught(self) -> bool:
        return self.plan is not None or bool(self.tests)


def search(name: str, runs_max: int, known: Catch | None = None) -> Catch:
    """Tell stories and run plans with the rule off until one fails. `known`: what the last search
    found; its plan comes first, and where it found none there are few runs."""
    found = mutation(name)
    tests = failing_stories(found) + failing_elsewhere(found)
    if not found.invariants:
        runs_max = 0
    elif tests and known is not None and known.plan is None:
        runs_max = min(runs_max, _HOPELESS_RUNS)
    by_error: Catch | None = None
    if known is not None and known.plan is not None:
        again = caught_by(found, known.plan, execute)
        if again is not None:
            return replace(known, reasons=_reasons(again), tests=tests)
    plans = (draw(searched(number)) for number in range(runs_max))
    for runs, plan in enumerate(plans, start=1):
        outcome = caught_by(found, plan, execute)
        if outcome is None:
            continue
        catch = Catch(name, _reasons(outcome), runs, plan, tests)
        if outcome.violations:
            return catch
        by_error = by_error or catch  # an assertion of the program: an invariant says more
    return by_error or Catch(name, (), runs_max, None, tests)


def _reasons(outcome: ClusterOutcome) -> tuple[str, ...]:
    known = sorted({violation.invariant for violation in outcome.violations})
    return tuple(known) or tuple(sorted(outcome.reasons))


def failing_stories(found: Mutation) -> tuple[str, ...]:
    """The stories of the mutation's defects that fail with its rule off."""
    failing = []
    for told in stories(found):
        with found.apply():
            try:
                told()
            except _BUGS as error:
                raise AssertionError(f"{found.name} does not fit the code: {error!r}") from error
            except (Exception, pytest.fail.Exception):  # noqa: BLE001  # however: it has noticed
                failing.append(told.__name__)
    return tuple(failing)


def stories(found: Mutation) -> list[Callable[[], None]]:
    """The stories of the mutation's defects (or of an invariant, as "R5"), as functions without
    arguments."""
    made: list[Callable[[], None]] = []
    for defect in found.defects:
        prefix = f"test_{defect[0].lower()}{int(defect[1:]):02}_"
        for path in sorted(Path(__file__).parent.glob(f"{prefix}*.py")):
            module = importlib.import_module(f"tests.simulation.cluster.{path.stem}")
            for name, value in vars(module).items():
                if name.startswith("test_") and not signature(value).parameters:
                    made.append(value)
    return made


# Command line


def _search(task: tuple[str, int, Catch | None]) -> tuple[Catch, str]:
    name, runs_max, known = task
    try:
        catch = search(name, runs_max, known)
    except AssertionError as error:
        return Catch(name), f"BROKEN {name}: {str(error)[:300]}"
    return catch, _line(catch)


def main(arguments: list[str]) -> int:
    """Search for all mutations; the exit status says whether each was caught."""
    parser = argparse.ArgumentParser(prog="make mutations CLUSTER=1", description=__doc__)
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
    how = f"not by {catch.runs} runs"
    if catch.plan is not None:
        how = f"{', '.join(catch.reasons)} after {catch.runs} runs"
    return f"{catch.name}: {how}; stories: {len(catch.tests)}"


# What is written


def load() -> dict[str, Catch]:
    """The catches that are stored."""
    if not CAUGHT.exists():
        return {}
    catches = {}
    for name, value in json.loads(CAUGHT.read_text()).items():
        plan = value["plan"] and ClusterPlan.from_json(json.dumps(value["plan"]))
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
    before, _, rest = DOCUMENT.read_text().partition(_BEGIN)
    _, _, after = rest.partition(_END)
    DOCUMENT.write_text(f"{before}{_BEGIN}\n{table(stored)}{_END}{after}")


def table(catches: dict[str, Catch]) -> str:
    """The table of mutations, in the order of the registry."""
    lines = [
        "| Mutation | Rule | Defects | Caught by | After runs | Stories that fail |",
        "|---|---|---|---|---|---|",
    ]
    for each in MUTATIONS:
        catch = catches.get(each.name)
        if catch is None:
            continue
        reasons, runs = ", ".join(catch.reasons), str(catch.runs)
        if catch.plan is None:
            reasons = "its stories" if catch.tests else "**nothing**"
            runs = f"not in {catch.runs}" if catch.runs else "-"
        lines.append(
            f"| `{each.name}`: {each.description} | {each.rule} | "
            f"{', '.join(each.defects) or '-'} | {reasons} | {runs} | {len(catch.tests) or '-'} |"
        )
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
