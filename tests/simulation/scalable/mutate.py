"""Whether every rule of scalable topics is needed: each is switched off, and must fail.

`python -m tests.simulation.scalable.mutate [--runs N] [--only NAME] [--write]`, or `make mutations
SCALABLE=1`. Plans of seeds 0, 1, 2, ... that have what the rule is about are run with the rule off
until one of the mutation's invariants does not hold; the same plan must pass with the rule on.
`--write` puts the table into docs/simulation.md, and what caught each mutation into caught.json,
which `test_scalable_mutations.py` replays.
"""

import argparse
import json
import multiprocessing
import sys
from dataclasses import asdict, dataclass
from itertools import count, islice
from pathlib import Path

from tests.simulation.scalable.drawing import draw
from tests.simulation.scalable.mutations import MUTATIONS, may_notice, mutation
from tests.simulation.scalable.plan import ScalablePlan
from tests.simulation.scalable.run import execute

RUNS_MAX = 60
CAUGHT = Path(__file__).with_name("caught.json")
DOCUMENT = Path(__file__).parents[3] / "docs" / "simulation.md"
_BEGIN, _END = "<!-- scalable mutations: begin -->", "<!-- scalable mutations: end -->"
_BROKEN = ("NameError", "TypeError", "AttributeError", "ImportError", "SyntaxError")


@dataclass(frozen=True, slots=True)
class Catch:
    """What noticed that a rule was off."""

    name: str
    reasons: tuple[str, ...] = ()
    runs: int = 0
    plan: ScalablePlan | None = None


def search(name: str, runs_max: int, start: int = 0) -> Catch:
    """Run plans that may notice with the rule off until one fails as the mutation says."""
    found = mutation(name)
    plans = (plan for seed in count(start) if may_notice(name, plan := draw(seed)))
    for number, plan in enumerate(islice(plans, runs_max)):
        with found.apply():
            outcome = execute(plan)
        if outcome.error.startswith(_BROKEN):
            raise AssertionError(f"{name} does not fit the code: {outcome.error}")
        reasons = sorted(outcome.reasons & set(found.invariants))
        if reasons and not execute(plan).has_failed:
            return Catch(name, tuple(reasons), number + 1, plan)
    return _by_hand(name) or Catch(name, (), runs_max)


def _by_hand(name: str) -> Catch | None:
    """What the stored plan makes of it: one that was written by hand, for a rule that drawn plans
    seldom need."""
    known, found = load().get(name), mutation(name)
    if known is None or known.plan is None:
        return None
    with found.apply():
        reasons = sorted(execute(known.plan).reasons & set(found.invariants))
    if not reasons or execute(known.plan).has_failed:
        return None
    return Catch(name, tuple(reasons), 0, known.plan)


# Command line


def _search(task: tuple[str, int, int]) -> tuple[Catch, str]:
    name, runs_max, start = task
    try:
        catch = search(name, runs_max, start)
    except AssertionError as error:
        return Catch(name), f"BROKEN {name}: {str(error)[:300]}"
    how = f"not by {catch.runs} runs"
    if catch.plan is not None:
        how = f"{', '.join(catch.reasons)} after {catch.runs} runs (seed {catch.plan.seed})"
    return catch, f"{catch.name}: {how}"


def main(arguments: list[str]) -> int:
    """Search for all mutations; the exit status says whether each was caught."""
    parser = argparse.ArgumentParser(prog="make mutations SCALABLE=1", description=__doc__)
    parser.add_argument("--runs", type=int, default=RUNS_MAX, help="plans per mutation")
    parser.add_argument("--start", type=int, default=0, help="the first seed")
    parser.add_argument("--only", default="", help="mutations whose name contains this")
    parser.add_argument("--jobs", type=int, default=multiprocessing.cpu_count())
    parser.add_argument("--write", action="store_true", help="write the table and the plans")
    options = parser.parse_args(arguments)
    names = [each.name for each in MUTATIONS if options.only in each.name]
    catches: dict[str, Catch] = {}
    with multiprocessing.get_context("spawn").Pool(options.jobs) as pool:
        tasks = [(name, options.runs, options.start) for name in names]
        for catch, text in pool.imap_unordered(_search, tasks):
            catches[catch.name] = catch
            _say(text)
    if options.write:
        write(catches)
    missed = [name for name in names if catches[name].plan is None]
    _say(f"{len(names) - len(missed)} of {len(names)} mutations are caught")
    for name in missed:
        _say(f"NOT CAUGHT: {name}")
    return 1 if missed else 0


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


# What is written


def load() -> dict[str, Catch]:
    """The catches that are stored."""
    if not CAUGHT.exists():
        return {}
    catches = {}
    for name, value in json.loads(CAUGHT.read_text()).items():
        plan = value["plan"] and ScalablePlan.from_json(json.dumps(value["plan"]))
        catches[name] = Catch(name, tuple(value["reasons"]), value["runs"], plan)
    return catches


def write(catches: dict[str, Catch]) -> None:
    """Store the catches beside those that are stored, and write the table of all."""
    stored = {**load(), **catches}
    values = {
        each.name: {
            "reasons": stored[each.name].reasons,
            "runs": stored[each.name].runs,
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
    lines = ["| Mutation | Rule | Caught by | After runs |", "|---|---|---|---|"]
    for each in MUTATIONS:
        catch = catches.get(each.name)
        if catch is None:
            continue
        reasons, runs = ", ".join(catch.reasons), str(catch.runs)
        if catch.plan is None:
            reasons, runs = "**nothing**", f"not in {catch.runs}"
        lines.append(f"| `{each.name}`: {each.description} | {each.rule} | {reasons} | {runs} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
