"""The drill of two clusters in short. `make chaos GEO=1` is the long form."""

import os
import random
from pathlib import Path

import pytest

from tests.chaos.geo.drill import Plan, run


@pytest.mark.timeout(1200)  # on a machine that does other things
@pytest.mark.parametrize("kills", [5, pytest.param(15, marks=pytest.mark.nightly)])
def test_every_message_is_once_in_both_clusters_though_servers_and_links_fail(
    kills: int, tmp_path: Path
) -> None:
    given = os.environ.get("CHAOS_SEED")
    seed = int(given) if given else random.SystemRandom().getrandbits(31)
    result = run(Plan(seed=seed, kills=kills, is_small=True), tmp_path / "drill")
    assert result["ok"], f"seed {seed} (CHAOS_SEED): {result}"
    assert result["messages"]
