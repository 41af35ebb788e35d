"""Whether every rule of the storage is needed: each is switched off, and something must notice.

`python -m tests.simulation.storing.mutate [--only NAME] [--write] [--anew]`, or `make mutations
STORAGE=1`. For each mutation comes first what noticed it last; then the scripts are cut at their
steps, then random lives are led, then bits are flipped, until a promise is broken; the same must go
well with the rule on. What none of these meets is left to the tests of its defects (`test_b05_...`,
anywhere under tests/).

`--write` puts the tables into docs/simulation.md, and what caught each mutation into caught.json
beside this file, which `test_storage_mutations.py` replays.
"""

import contextlib
import io
import json
import re
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from itertools import chain
from pathlib import Path

import pytest

from tests.simulation.inode import Survival
from tests.simulation.mutations import storage_integrity
from tests.simulation.mutations.elsewhere import failing_elsewhere
from tests.simulation.mutations.mutation import Mutation
from tests.simulation.mutations.searching import (
    attempt_all,
    parser_of,
    put_into_document,
    store,
)
from tests.simulation.mutations.storage_registry import (
    STORAGE_MUTATIONS,
    TESTS_ONLY,
    defects_of,
    storage_mutation,
)
from tests.simulation.storing.cut import (
    SURVIVALS,
    cut_everywhere,
    lose_after_kill,
    lose_newest,
    play,
    restart,
)
from tests.simulation.storing.flips import flip_some
from tests.simulation.storing.lives import LivesPlan, draw_lives, live
from tests.simulation.storing.machine import Shape
from tests.simulation.storing.scripts import SCRIPTS
from tests.simulation.storing.troubles import troubled

LIVES_MAX = 250
CAUGHT = Path(__file__).with_name("caught.json")
REGRESSIONS = Path(__file__).with_name("regressions")
TESTS = Path(__file__).parents[2]
_SHAPES = (Shape(), Shape(engine="interleaved"), Shape(journals=2, shards=3))
_FLIPS_PER_FILE = 25
_BROKEN = re.compile(r"\b(NameError|TypeError|AttributeError|ImportError|SyntaxError)\b")
_DEFECTS = 26
_OF_MUTATIONS = (
    "tests/simulation/test_loss_pass.py::test_the_stories_of_a_loss_notice_when_a_rule_is_off"
)


@dataclass(frozen=True, slots=True)
class Catch:
    """What noticed that a rule was off: one of a cut, a plan of lives, flips, or tests alone."""

    name: str
    by: str = ""
    """cut, killed, lost, lives, flips; empty if only tests notice, or nothing."""
    script: str = ""
    shape: Shape = _SHAPES[0]
    step: int = -1
    """Index of the cut, -1: the workload itself fails; for flips the moment, in percent."""
    survival: str = ""
    plan: LivesPlan | None = None
    reason: str = ""
    tests: tuple[str, ...] = ()
    """Tests of its defects that fail; looked for where no run notices."""

    @property
    def is_caught(self) -> bool:
        return bool(self.by or self.tests)

    def fails(self, *, everywhere: bool = False) -> str:
        """Do it again; what goes wrong, or nothing. `everywhere`: not only at the step that caught
        it, since code that has changed may take its steps elsewhere."""
        if self.by == "lives":
            assert self.plan is not None
            return live(self.plan).error
        try:
            played = play(SCRIPTS[self.script], self.shape)
            if self.by == "flips":
                at = (len(played.cuts) - 1) * self.step // 100
                flip_some(played, played.cuts[at], per_file=_FLIPS_PER_FILE)
            elif self.by == "killed":
                lose_after_kill(played, played.cuts[self.step])
            elif self.by == "lost":
                for cut in played.cuts if everywhere else played.cuts[self.step : self.step + 1]:
                    lose_newest(played, cut)
            elif everywhere:
                cut_everywhere(played)
            elif self.step >= 0:
                cut = played.cuts[min(self.step, len(played.cuts) - 1)]
                restart(played, cut, Survival[self.survival], seed=f"{cut.step}")
        except Exception as error:  # noqa: BLE001  # however: it has noticed
            return f"{type(error).__name__}: {error}"
        return ""


def search(found: Mutation, known: Catch | None = None) -> Catch:
    """Try everything with the rule off, until something fails that does not with the rule on.
    `known`: what failed the last time, which is tried first."""
    if found.name in TESTS_ONLY:
        return Catch(found.name)
    if known is not None and known.by:
        with found.apply():
            reason = known.fails() or known.fails(everywhere=True)
        if reason and not _BROKEN.search(reason) and not known.fails():
            return replace(known, reason=reason, tests=())
    for catch in _attempts(found):
        if _BROKEN.search(catch.reason):
            raise AssertionError(f"{found.name} does not fit the code: {catch.reason[:300]}")
        if not catch.fails():
            return catch
    return Catch(found.name)


def _attempts(found: Mutation) -> Iterator[Catch]:
    """What fails with the rule off."""
    for shape in _SHAPES:
        for script in sorted(SCRIPTS, key=lambda name: len(SCRIPTS[name])):
            yield from _cuts(found, script, shape)
    yield from _killed(found, "adds", _SHAPES[0])
    yield from _lost(found, "adds", _SHAPES[0])
    kept = (LivesPlan.from_json(path.read_text()) for path in sorted(REGRESSIONS.glob("*.json")))
    plans = chain(kept, (draw_lives(seed) for seed in range(LIVES_MAX)))
    for plan in chain(plans, troubled("adds", _SHAPES[0], every=2), troubled("adds", _SHAPES[1])):
        with found.apply():
            error = live(plan).error
        if error:
            yield Catch(found.name, "lives", plan=plan, reason=error)
    for script in ("adds", "compaction"):
        for shape in _SHAPES:
            for part in (60, 100):
                catch = Catch(found.name, "flips", script, shape, part)
                with found.apply():
                    error = catch.fails()
                if error:
                    yield replace(catch, reason=error)


def _cuts(found: Mutation, script: str, shape: Shape) -> Iterator[Catch]:
    with found.apply():
        try:
            played = play(SCRIPTS[script], shape)
        except Exception as error:  # noqa: BLE001  # however: it has noticed
            reason = f"{type(error).__name__}: {error}"
            yield Catch(found.name, "cut", script, shape, reason=reason)
            return
        failures = []
        for at, cut in enumerate(played.cuts):
            survival = SURVIVALS[at % len(SURVIVALS)]
            try:
                restart(played, cut, survival, seed=f"{cut.step}")
            except AssertionError as error:
                failures.append((at, survival.name, str(error)))
                if len(failures) == 3:
                    break
    for at, name, reason in failures:
        yield Catch(found.name, "cut", script, shape, at, name, reason=reason)


def _killed(found: Mutation, script: str, shape: Shape) -> Iterator[Catch]:
    """The process is killed in the middle of a write to the journal."""
    catch = None
    with found.apply():
        try:
            played = play(SCRIPTS[script], shape)
        except AssertionError:
            return
        for at, cut in enumerate(played.cuts):
            if ".journal" not in cut.path:
                continue
            try:
                lose_after_kill(played, cut)
            except AssertionError as error:
                catch = Catch(found.name, "killed", script, shape, at, reason=str(error))
                break
    if catch is not None:  # the rule is on again: the catch is played once more
        yield catch


def _lost(found: Mutation, script: str, shape: Shape) -> Iterator[Catch]:
    """The process is killed, and the newest journal file is gone."""
    catch = None
    with found.apply():
        try:
            played = play(SCRIPTS[script], shape)
        except AssertionError:
            return
        for at, cut in enumerate(played.cuts):
            try:
                lose_newest(played, cut)
            except AssertionError as error:
                catch = Catch(found.name, "lost", script, shape, at, reason=str(error))
                break
    if catch is not None:  # the rule is on again: the catch is played once more
        yield catch


# Tests of the defects


def defect_tests() -> dict[str, list[str]]:
    """By defect, the tests of its number: `path::name`."""
    return {
        f"B{number}": list(_tests_named(rf"test_b{number:02}_"))
        for number in range(1, _DEFECTS + 1)
    }


def _tests_named(prefix: str) -> Iterator[str]:
    for path in sorted(TESTS.rglob("test_*.py")):
        pattern = rf"^(?:async )?def ({prefix}\w+)"
        for name in re.findall(pattern, path.read_text(), re.MULTILINE):
            yield f"{path.relative_to(TESTS.parent)}::{name}"


class _Failures:
    """A pytest plugin that notes what fails."""

    def __init__(self) -> None:
        self.failed: list[str] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self.failed.append(report.nodeid.rpartition("::")[2].partition("[")[0])


def failing_tests(found: Mutation) -> tuple[str, ...]:
    """Tests of its defects and its rule, those of the simulator apart, that fail with it off."""
    tests = defect_tests()
    wanted = [
        each
        for defect in defects_of(found)
        for each in tests[defect]
        if not each.startswith("tests/simulation/")
    ]
    if re.fullmatch(r"\d+\.\d+", found.rule):
        wanted += _tests_named(rf"test_(?:rule_)?{found.rule.replace('.', '_')}_")
    if found in storage_integrity.MUTATIONS:
        wanted.append("tests/simulation/test_loss_pass.py")  # their stories
    elsewhere = failing_elsewhere(found)
    if not wanted:
        return elsewhere
    failures = _Failures()
    with found.apply(), contextlib.redirect_stdout(io.StringIO()):
        # A rule that is off may leave somebody waiting for ever.
        options = ["-q", "-p", "no:cacheprovider", "--timeout=30", "--deselect", _OF_MUTATIONS]
        pytest.main([*options, *wanted], plugins=[failures])
    return tuple(dict.fromkeys([*failures.failed, *elsewhere]))


# Command line


def _search(task: tuple[str, Catch | None]) -> tuple[Catch, str]:
    name, known = task
    before_s = time.perf_counter()
    found = storage_mutation(name)
    try:
        catch = search(found, known)
        tests = () if catch.by else failing_tests(found)
    except AssertionError as error:
        return Catch(name), f"BROKEN {str(error)[:400]}"
    catch = replace(catch, tests=tests)
    how = f"{catch.by or 'not by a run'}; tests: {len(tests)}"
    return catch, f"{name}: {how}  [{time.perf_counter() - before_s:.1f} s]"


def main(arguments: list[str]) -> int:
    """Search for all mutations; the exit status says whether each was caught."""
    parser = parser_of(__doc__)
    parser.add_argument("--runs", type=int, help="accepted; the number of lives is fixed")
    parser.add_argument("--missing", action="store_true", help="only those without a stored catch")
    options = parser.parse_args(arguments)
    names = [each.name for each in STORAGE_MUTATIONS if options.only in each.name]
    stored = load()
    if options.missing:
        names = [name for name in names if name not in stored or not stored[name].is_caught]
    tasks = [(name, None if options.anew else stored.get(name)) for name in names]

    def keep(catch: Catch) -> None:
        if options.write:
            write({catch.name: catch})

    return attempt_all(tasks, _search, options.jobs, keep)[1]


# What is written


def load() -> dict[str, Catch]:
    """The catches that are stored."""
    if not CAUGHT.exists():
        return {}
    catches = {}
    for name, value in json.loads(CAUGHT.read_text()).items():
        plan = value.pop("plan")
        value["shape"] = Shape(**value["shape"])
        value["tests"] = tuple(value["tests"])
        catches[name] = Catch(
            **value, plan=LivesPlan.from_json(json.dumps(plan)) if plan is not None else None
        )
    return catches


def write(catches: dict[str, Catch]) -> None:
    """Store the catches beside those that are stored, and write both tables."""
    stored = {**load(), **catches}
    stored = {each.name: stored[each.name] for each in STORAGE_MUTATIONS if each.name in stored}
    store(CAUGHT, {name: asdict(each) for name, each in stored.items()})
    put_into_document("storage mutations", mutation_table(stored))
    put_into_document("storage defects", defect_table(stored))


def how(catch: Catch | None) -> str:
    """Say in words what noticed a mutation."""
    if catch is None:
        return "**not searched**"
    if catch.by == "cut":
        where = "while it runs" if catch.step < 0 else f"step {catch.step}, {catch.survival}"
        return f"cut of `{catch.script}` ({catch.shape.label}): {where}"
    if catch.by == "killed":
        where = f"step {catch.step} of `{catch.script}` ({catch.shape.label})"
        return f"killed at {where}, then the power is lost behind the next start"
    if catch.by == "lost":
        where = f"step {catch.step} of `{catch.script}` ({catch.shape.label})"
        return f"killed at {where}, then the newest journal file is gone or cut"
    if catch.by == "lives":
        assert catch.plan is not None
        if len(catch.plan.lives) == 3 and catch.plan.lives[1] == catch.plan.lives[2]:
            return f"a call that fails ({catch.plan.shape.label})"
        return f"lives, seed {catch.plan.seed}"
    if catch.by == "flips":
        return f"flips at {catch.step} % of `{catch.script}` ({catch.shape.label})"
    if catch.tests:
        return f"{len(catch.tests)} test{'s' if len(catch.tests) > 1 else ''} of its defect or rule"
    return "**nothing**"


def mutation_table(catches: dict[str, Catch]) -> str:
    lines = [
        "| Mutation | Rule | Defects | Caught by |",
        "|---|---|---|---|",
    ]
    for each in STORAGE_MUTATIONS:
        lines.append(
            f"| `{each.name}`: {each.description} | {each.rule} | "
            f"{', '.join(defects_of(each)) or '-'} | {how(catches.get(each.name))} |"
        )
    return "\n".join(lines) + "\n"


def defect_table(catches: dict[str, Catch]) -> str:
    """Every defect of the storage sheet: its tests, its mutations, and what catches these."""
    tests = defect_tests()
    lines = ["| Defect | Tests | Mutations: caught by |", "|---|---|---|"]
    for defect, found in tests.items():
        names = sorted({each.rpartition("::")[2] for each in found})
        mutations = [each for each in STORAGE_MUTATIONS if defect in defects_of(each)]
        caught = "; ".join(f"`{each.name}`: {how(catches.get(each.name))}" for each in mutations)
        shown = ", ".join(f"`{name}`" for name in names)
        lines.append(f"| {defect} | {shown or '-'} | {caught or '-'} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
