"""The drill in short: for each run, and for the night. `make chaos TXN=1` is the long form."""

import os
import random
from pathlib import Path

import pytest

from tests.chaos.transactions.drill import Plan, run

KILLS = 5
KILLS_OF_EACH_RUN = 2


@pytest.mark.timeout(1200)  # on a machine that does other things
@pytest.mark.parametrize(
    "kills", [KILLS_OF_EACH_RUN, pytest.param(KILLS, marks=pytest.mark.nightly)]
)
def test_every_message_has_exactly_one_result_though_everything_is_killed(
    kills: int, tmp_path: Path
) -> None:
    given = os.environ.get("CHAOS_SEED")
    seed = int(given) if given else random.SystemRandom().getrandbits(31)
    result = run(Plan(seed=seed, kills=kills), tmp_path / "drill")
    assert result["ok"], f"seed {seed} (CHAOS_SEED): {result}"
    assert result["messages"]
