"""The drill in its short form. `make chaos TXN=1` is the long one."""

import os
import random
from pathlib import Path

import pytest

from tests.chaos.transactions.drill import Plan, run

KILLS = 5


@pytest.mark.timeout(1200)  # on a machine that does other things
def test_every_message_has_exactly_one_result_though_everything_is_killed(tmp_path: Path) -> None:
    given = os.environ.get("CHAOS_SEED")
    seed = int(given) if given else random.SystemRandom().getrandbits(31)
    result = run(Plan(seed=seed, kills=KILLS), tmp_path / "drill")
    assert result["ok"], f"seed {seed} (CHAOS_SEED): {result}"
    assert result["messages"]
