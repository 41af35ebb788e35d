"""Runs of a scalable topic drawn from seeds: none violates an invariant; each is the same
everywhere."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.sampling import sampled
from tests.simulation.scalable.drawing import draw
from tests.simulation.scalable.plan import ScalablePlan
from tests.simulation.scalable.run import execute
from tests.simulation.seeds import fresh_seeds

RUNS = 32
"""Of fixed seeds; `make sim SCALABLE=1 RUNS=n` is the long form."""
PER_TEST = 4
FRESH = 6
FIRSTS = [(first,) for first in range(0, RUNS, PER_TEST)]
"""Of the fixed seeds an eighth is tried each day, all by `make nightly`."""
REGRESSIONS = sorted(Path(__file__).with_name("regressions").glob("*.json"))
ROOT = Path(__file__).resolve().parents[3]


def _run(seeds: range) -> None:
    for seed in seeds:
        outcome = execute(draw(seed))
        again = f"make sim SCALABLE=1 SEED={seed} STORY=1"
        assert not outcome.has_failed, f"{again}\n{outcome.report()}"


@pytest.mark.parametrize("first", sampled(FIRSTS, every=len(FIRSTS)))
def test_no_invariant_is_violated(first: int) -> None:
    _run(range(first, first + PER_TEST))


def test_no_invariant_is_violated_with_fresh_seeds() -> None:
    _run(fresh_seeds(FRESH))


def test_what_failed_once_stays_mended() -> None:
    for path in REGRESSIONS:
        outcome = execute(ScalablePlan.from_json(path.read_text()))
        assert not outcome.has_failed, f"{path.stem}\n{outcome.report()}"


def test_a_plan_survives_being_written_down() -> None:
    for seed in range(100):
        assert ScalablePlan.from_json(draw(seed).to_json()) == draw(seed)


def test_all_changes_and_faults_are_drawn() -> None:
    plans = [draw(seed) for seed in range(300)]
    kinds = frozenset[str]().union(*(plan.kinds for plan in plans))
    assert kinds >= {"split", "merge", "seek", "prune", "late", "kill", "crash_writer", "unload"}
    assert any(plan.is_calm for plan in plans)
    assert {plan.entry_buckets for plan in plans} == {1, 4}
    assert any(plan.prunes and plan.keeps_min for plan in plans)


_PRINT_FINGERPRINTS = """
from tests.simulation.scalable.drawing import draw
from tests.simulation.scalable.run import execute
for seed in range(1000, 1002):
    print(seed, execute(draw(seed)).history.fingerprint())
"""


def test_a_seed_has_the_same_history_in_every_process() -> None:
    """Byte for byte, under other hashes of strings and other addresses of objects."""
    histories = [_fingerprints(hash_seed) for hash_seed in ("0", "4711")]
    assert histories[0] == histories[1]
    assert len(histories[0].splitlines()) == 2


def _fingerprints(hash_seed: str) -> str:
    path = os.pathsep.join(each for each in sys.path if each)
    done = subprocess.run(
        [sys.executable, "-c", _PRINT_FINGERPRINTS],
        cwd=ROOT,
        env={**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout
