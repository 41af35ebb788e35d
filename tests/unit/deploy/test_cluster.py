"""Supervision of a cluster's servers: none is given up without a word."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from structlog.testing import capture_logs

from magnetar.deploy import cluster as module
from magnetar.deploy.cluster import Cluster, ClusterSettings
from magnetar.deploy.cluster_child import Child
from magnetar.deploy.cluster_plan import Kind, ServerPlan
from magnetar.deploy.errors import DeployError

PLAN = ServerPlan("bookie-1", Kind.BOOKIE, {}, (), None)


class Scripted:
    """A server whose starts and ends follow a script."""

    plan = PLAN
    pid = 7
    is_running = True

    def __init__(self, log_path: Path, *starts: BaseException | None) -> None:
        self.log_path = log_path
        self.left = list(starts)
        self.started = 0

    async def start(self, _timeout_s: float) -> None:
        outcome = self.left.pop(0)
        if outcome is not None:
            raise outcome
        self.started += 1

    async def wait_exit(self) -> int:
        if self.left:
            return 1
        return 0  # stopped on purpose: the supervision ends


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cluster:
    monkeypatch.setattr(module, "_RESTART_DELAY_S", 0.0)
    made = Cluster(ClusterSettings(data=tmp_path))
    vars(made)["_tell_who_runs"] = lambda: None
    return made


async def test_a_server_that_is_still_dying_counts_as_a_failed_start(tmp_path: Path) -> None:
    child = Child(PLAN, log_path=tmp_path / "bookie-1.log")
    child._process = cast(Any, SimpleNamespace(returncode=None, pid=7))
    with pytest.raises(DeployError, match=r"bookie-1 \(pid 7\) has not ended yet"):
        await child.start(1)
    assert child.starts == 0


@pytest.mark.parametrize("failure", [DeployError("still dying"), RuntimeError("a defect")])
async def test_a_server_is_restarted_until_it_runs(
    cluster: Cluster, tmp_path: Path, failure: Exception
) -> None:
    child = Scripted(tmp_path / "bookie-1.log", failure, failure, None)
    with capture_logs() as logs:
        await cluster._look_after(cast(Child, child))
    assert child.started == 1
    assert [each["event"] for each in logs] == [
        "server_ended",
        "server_not_restarted",
        "server_not_restarted",
        "server_restarted",
        "server_ended",
    ]


async def test_a_supervision_that_fails_says_so(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_: int) -> str:
        raise RuntimeError("a defect")

    monkeypatch.setattr(module, "describe_status", fail)
    with capture_logs() as logs:
        await cluster._look_after(cast(Child, Scripted(tmp_path / "bookie-1.log", None)))
    assert [(each["event"], each["server"]) for each in logs] == [
        ("server_not_looked_after", "bookie-1")
    ]
