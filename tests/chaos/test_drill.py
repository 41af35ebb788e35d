"""The drill in its short form. `make chaos` is the long one."""

import os
import random
from pathlib import Path

import pytest

from tests.chaos.drill import Plan, run

STRIKES = 10
STRIKES_AND_FULL_DISKS = 6


@pytest.mark.disk
def test_nothing_acknowledged_is_lost_when_processes_are_killed_and_paused(tmp_path: Path) -> None:
    given = os.environ.get("CHAOS_SEED")
    seed = int(given) if given else random.SystemRandom().getrandbits(31)
    result = run(Plan(seed=seed, strikes=STRIKES, writers=2), tmp_path / "drill")
    assert result["ok"], f"seed {seed} (CHAOS_SEED): {result}"
    assert result["entries_acknowledged"]


def test_full_disks_refuse_and_recover_while_bookies_are_killed(tmp_path: Path) -> None:
    given = os.environ.get("CHAOS_SEED")
    seed = int(given) if given else random.SystemRandom().getrandbits(31)
    plan = Plan(seed=seed, strikes=STRIKES_AND_FULL_DISKS, bookies=4, writers=1, disk_full=True)
    result = run(plan, tmp_path / "drill")
    assert result["ok"], f"seed {seed} (CHAOS_SEED): {result}"
    assert result["adds_refused"]
    assert result["fences_checked"]
