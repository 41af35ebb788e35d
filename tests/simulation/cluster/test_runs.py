"""Runs of clusters drawn from seeds: none violates an invariant; each is the same everywhere."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.sampling import sampled
from tests.simulation.cluster.drawing import (
    BUSY_SEEDS_FROM,
    DEDUPLICATING_SEEDS_FROM,
    TRIMMED_SEEDS_FROM,
    draw,
)
from tests.simulation.cluster.plan import ClusterPlan
from tests.simulation.cluster.run import execute
from tests.simulation.seeds import fresh_seeds

RUNS = 40
"""Of plain seeds; `make sim CLUSTER=1 RUNS=n` is the long form."""
PER_TEST = 20
FEWER = 10
"""Runs of the other kinds of fixed seeds. The fresh ones find more than these can."""
FRESH_PER_KIND = 15
FIRSTS = [(first,) for first in range(0, RUNS, PER_TEST)]
"""Of the fixed seeds half is tried each day, all by `make nightly`."""
REGRESSIONS = sorted(Path(__file__).with_name("regressions").glob("*.json"))
ROOT = Path(__file__).resolve().parents[3]


@pytest.mark.parametrize("first", sampled(FIRSTS, every=2))
def test_no_invariant_is_violated(first: int) -> None:
    for seed in range(first, first + PER_TEST):
        outcome = execute(draw(seed))
        assert not outcome.has_failed, f"make sim CLUSTER=1 SEED={seed} STORY=1\n{outcome.report()}"


_FRESH = {
    "plain": (RUNS, TRIMMED_SEEDS_FROM),
    "trimmed": (TRIMMED_SEEDS_FROM + 2 * FEWER, DEDUPLICATING_SEEDS_FROM),
    "deduplicating": (DEDUPLICATING_SEEDS_FROM + FEWER, BUSY_SEEDS_FROM),
    "busy": (BUSY_SEEDS_FROM + 2 * FEWER, 1_000_000_000),
}


@pytest.mark.parametrize("kind", _FRESH)
def test_no_invariant_is_violated_with_fresh_seeds(kind: str) -> None:
    first, below = _FRESH[kind]
    for seed in fresh_seeds(FRESH_PER_KIND, first=first, below=below):
        outcome = execute(draw(seed))
        assert not outcome.has_failed, f"make sim CLUSTER=1 SEED={seed} STORY=1\n{outcome.report()}"


def test_no_invariant_is_violated_while_topics_are_trimmed() -> None:
    for seed in range(TRIMMED_SEEDS_FROM, TRIMMED_SEEDS_FROM + 2 * FEWER, 2):
        outcome = execute(draw(seed))
        assert not outcome.has_failed, f"make sim CLUSTER=1 SEED={seed} STORY=1\n{outcome.report()}"


def test_no_invariant_is_violated_while_topics_deduplicate() -> None:
    for seed in range(DEDUPLICATING_SEEDS_FROM, DEDUPLICATING_SEEDS_FROM + FEWER):
        outcome = execute(draw(seed))
        assert not outcome.has_failed, f"make sim CLUSTER=1 SEED={seed} STORY=1\n{outcome.report()}"


def test_no_invariant_is_violated_while_topics_move_all_the_time() -> None:
    for seed in range(BUSY_SEEDS_FROM, BUSY_SEEDS_FROM + 2 * FEWER):
        outcome = execute(draw(seed))
        assert not outcome.has_failed, f"make sim CLUSTER=1 SEED={seed} STORY=1\n{outcome.report()}"


def test_what_failed_once_stays_mended() -> None:
    for path in REGRESSIONS:
        outcome = execute(ClusterPlan.from_json(path.read_text()))
        assert not outcome.has_failed, f"{path.stem}\n{outcome.report()}"


def test_a_plan_survives_being_written_down() -> None:
    for seed in range(100):
        assert ClusterPlan.from_json(draw(seed).to_json()) == draw(seed)
        busy = BUSY_SEEDS_FROM + seed
        assert ClusterPlan.from_json(draw(busy).to_json()) == draw(busy)


SAME_SEEDS = tuple(range(1000, 1012))
_PRINT_FINGERPRINTS = f"""
from tests.simulation.cluster.drawing import draw
from tests.simulation.cluster.run import execute
for seed in {SAME_SEEDS}:
    print(seed, execute(draw(seed)).history.fingerprint())
"""


def test_a_seed_has_the_same_history_in_every_process() -> None:
    """Byte for byte, under other hashes of strings and other addresses of objects."""
    histories = [_fingerprints(hash_seed) for hash_seed in ("0", "4711")]
    assert histories[0] == histories[1]
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
