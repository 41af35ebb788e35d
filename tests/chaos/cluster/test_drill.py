"""The drill of the cluster: two faults in each run, every fault twice at night.

`make chaos CLUSTER=1` has the long form.

It runs in a process of its own, as the command does: who is not root gets a namespace there.
"""

import json
import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

from tests.chaos.cluster.faults import FAULTS
from tests.processes import ROOT, magnetar_environment

_TIMES = 2
_SHORT = ("owner-killed", "bookie-killed")
_TIMEOUT_S = 1200
"""On a machine that does other things; alone it is a sixth of that."""
_WITH_ONE_ZOOKEEPER = (
    "owner-killed",
    "owner-paused",
    "bookie-killed",
    "bookie-slow",
    "broker-cut-from-zookeeper",
    "disk-full",
)
_WITH_THREE = (
    "bookie-lost",
    "broker-cut-from-bookies",
    "broker-cut-from-clients",
    "zookeeper-restarted",
    "zookeeper-leader-killed",
    "rolling-restart",
)


def _drill(directory: Path, *arguments: str, times: int = _TIMES) -> dict[str, object]:
    given = os.environ.get("CHAOS_SEED")
    seed = int(given) if given else random.SystemRandom().getrandbits(31)
    finished = subprocess.run(
        [
            *(sys.executable, "-m", "tests.chaos.cluster", "--times", str(times)),
            *("--seed", str(seed), "--brokers", "2", "--bookies", "4", "--topics", "3"),
            *("--dir", str(directory), *arguments),
        ],
        cwd=ROOT,
        env=magnetar_environment(),
        capture_output=True,
        text=True,
        timeout=_TIMEOUT_S,
        check=False,
    )
    assert finished.stdout, f"seed {seed} (CHAOS_SEED): {finished.stderr[-4000:]}"
    result: dict[str, object] = json.loads(finished.stdout)
    assert result["ok"], f"seed {seed} (CHAOS_SEED): {result}\n{finished.stderr[-4000:]}"
    return result


@pytest.mark.timeout(_TIMEOUT_S + 10)
def test_official_clients_lose_nothing_when_an_owner_and_a_bookie_are_killed(
    tmp_path: Path,
) -> None:
    result = _drill(tmp_path / "drill", "--zookeepers", "1", "--only", ",".join(_SHORT), times=1)
    struck = result["faults"]
    assert isinstance(struck, dict)
    assert {name: struck[name]["times"] for name in struck} == dict.fromkeys(_SHORT, 1)
    assert result["acknowledged"]


@pytest.mark.nightly
@pytest.mark.timeout(_TIMEOUT_S + 10)
@pytest.mark.parametrize(
    ("zookeepers", "faults"), [(1, _WITH_ONE_ZOOKEEPER), (3, _WITH_THREE)], ids=["one", "three"]
)
def test_official_clients_lose_nothing_while_every_fault_strikes(
    zookeepers: int, faults: tuple[str, ...], tmp_path: Path
) -> None:
    result = _drill(tmp_path / "drill", "--zookeepers", str(zookeepers), "--only", ",".join(faults))
    struck = result["faults"]
    assert isinstance(struck, dict)
    assert {name: struck[name]["times"] for name in struck} == dict.fromkeys(faults, _TIMES)
    assert result["acknowledged"]


def test_every_fault_strikes_at_night() -> None:
    assert {*_WITH_ONE_ZOOKEEPER, *_WITH_THREE} == set(FAULTS)
