"""The drill of tiered storage in short. `make chaos OFFLOAD=1` is the long form."""

import os
import random
from pathlib import Path

import pytest

from tests.chaos.offloading.drill import Plan, problems, run


def test_the_verdict_tells_what_is_missing_twice_and_out_of_order() -> None:
    assert problems([0, 1, 3], [0, 1, 2, 3]) == []
    assert problems([0, 1, 3], [0, 3]) == ["1 is lost"]
    assert problems([0], [0, 0]) == ["1 messages are there twice"]
    assert problems([0], [1, 0]) == ["messages are out of order"]


@pytest.mark.timeout(1200)  # on a machine that does other things
@pytest.mark.parametrize("kills", [3, pytest.param(10, marks=pytest.mark.nightly)])
def test_nothing_is_lost_on_the_way_to_a_bucket_through_kills_and_lost_answers(
    kills: int, tmp_path: Path
) -> None:
    given = os.environ.get("CHAOS_SEED")
    seed = int(given) if given else random.SystemRandom().getrandbits(31)
    result = run(Plan(seed=seed, kills=kills), tmp_path / "drill")
    assert result["ok"], f"seed {seed} (CHAOS_SEED): {result}"
    assert result["messages"]
