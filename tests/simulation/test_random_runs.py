"""Runs drawn from seeds: none violates an invariant, and each is the same wherever it runs."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.sampling import sampled
from tests.simulation.drawing import draw
from tests.simulation.plan import Plan
from tests.simulation.run import execute
from tests.simulation.seeds import fresh_seeds

RUNS = 100
"""The short form, and as many fresh seeds; `make sim RUNS=n` is the long one."""
PER_TEST = 50
FIRSTS = [(first,) for first in range(0, RUNS, PER_TEST)]
"""Of the fixed seeds half is tried each day, all by `make nightly`."""
REGRESSIONS = sorted(Path(__file__).with_name("regressions").glob("*.json"))
ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("first", sampled(FIRSTS, every=2))
def test_no_invariant_is_violated(first: int) -> None:
    for seed in range(first, first + PER_TEST):
        outcome = execute(draw(seed))
        assert not outcome.has_failed, f"make sim SEED={seed} STORY=1\n{outcome.report()}"


@pytest.mark.parametrize("part", range(RUNS // PER_TEST))
def test_no_invariant_is_violated_with_fresh_seeds(part: int) -> None:
    for seed in fresh_seeds(PER_TEST):
        outcome = execute(draw(seed))
        assert not outcome.has_failed, f"make sim SEED={seed} STORY=1\n{outcome.report()}"


@pytest.mark.parametrize("path", REGRESSIONS, ids=lambda path: path.stem)
def test_what_failed_once_stays_mended(path: Path) -> None:
    outcome = execute(Plan.from_json(path.read_text()))
    assert not outcome.has_failed, outcome.report()


def test_a_plan_survives_being_written_down() -> None:
    for seed in range(200):
        assert Plan.from_json(draw(seed).to_json()) == draw(seed)


SAME_SEEDS = tuple(range(1000, 1030))
_PRINT_FINGERPRINTS = f"""
from tests.simulation.drawing import draw
from tests.simulation.run import execute
for seed in {SAME_SEEDS}:
    print(seed, execute(draw(seed)).history.fingerprint())
"""


def test_a_seed_has_the_same_history_in_every_process() -> None:
    """Byte for byte, under other hashes of strings and other addresses of objects."""
    histories = [_fingerprints(hash_seed) for hash_seed in ("0", "1", "4711")]
    assert histories[0] == histories[1] == histories[2]
    assert len(histories[0].splitlines()) == len(SAME_SEEDS)


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
