"""The programs of docs/examples that use ledgers and logs: a standby, snapshots, a directory."""

import random
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster import ProcessCluster
from tests.integration.deploy.commands import Ended, run_command
from tests.processes import ROOT, magnetar_environment
from tests.waiting import wait_until

EXAMPLES = ROOT / "docs" / "examples"


@pytest.fixture(scope="module")
def metadata_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with ProcessCluster(tmp_path_factory.mktemp("cluster"), broker=False) as cluster:
        yield cluster.metadata_url


class Node:
    """One running process of the edit log's example."""

    def __init__(self, metadata_url: str, *options: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, str(EXAMPLES / "edit_log.py"), metadata_url, *options],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=magnetar_environment(),
        )
        self.ready = self._answer()

    def _answer(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline().rstrip("\n")

    def ask(self, command: str) -> str:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{command}\n")
        self._process.stdin.flush()
        return self._answer()

    def send_signal(self, number: signal.Signals) -> None:
        self._process.send_signal(number)

    def end(self) -> None:
        self._process.kill()
        self._process.communicate(timeout=30)


def test_a_standby_follows_its_primary_and_goes_on_where_it_was_killed(metadata_url: str) -> None:
    primary = Node(metadata_url, "--log", "/examples/followed")
    assert primary.ready == "primary 0"
    assert primary.ask("make /a") == "ok"
    standby = Node(metadata_url, "--log", "/examples/followed", "--standby")
    try:
        assert standby.ready == "standby"
        assert standby.ask("make /x").startswith("error: this is the standby")
        for number in range(200):
            assert primary.ask(f"make /a/{number}") == "ok"
        assert primary.ask("remove /a/7") == "ok"
        # It follows without being promoted, up to the last edit, which nothing follows.
        wait_until(lambda: standby.ask("edits") == "edits 202")
        assert primary.ask("make /b") == "ok"
        primary.end()
        assert standby.ask("promote") == "primary 203"
        paths = standby.ask("list").split()[1:]
        assert set(paths) == {"/a", "/b"} | {f"/a/{n}" for n in range(200) if n != 7}
        assert standby.ask("make /c") == "ok"
    finally:
        primary.end()
        standby.end()


def test_a_primary_that_was_paused_logs_no_edit_after_the_standby_took_over(
    metadata_url: str,
) -> None:
    primary = Node(metadata_url, "--log", "/examples/paused")
    standby = Node(metadata_url, "--log", "/examples/paused", "--standby")
    try:
        assert primary.ask("make /before") == "ok"
        primary.send_signal(signal.SIGSTOP)
        assert standby.ask("promote") == "primary 1"
        assert standby.ask("make /after") == "ok"
        primary.send_signal(signal.SIGCONT)
        assert "another owner has taken the log over" in primary.ask("make /late")
        assert standby.ask("list") == "paths /after /before"
        # The former primary follows now, and can be promoted again.
        assert primary.ask("promote") == "primary 2"
        assert primary.ask("list") == "paths /after /before"
    finally:
        primary.end()
        standby.end()


def run(program: str, metadata_url: str, *words: str) -> Ended:
    return run_command([sys.executable, str(EXAMPLES / program), metadata_url, *words])


def done(program: str, metadata_url: str, *words: str) -> str:
    ended = run(program, metadata_url, *words)
    assert ended.status == 0, ended.stderr
    return ended.stdout.rstrip("\n")


def test_a_snapshot_is_loaded_as_it_was_saved_and_replaced_as_a_whole(
    metadata_url: str, tmp_path: Path
) -> None:
    source, target = tmp_path / "source", tmp_path / "target"
    for size in (3_000_001, 0, 5):
        data = random.Random(size).randbytes(size)
        source.write_bytes(data)
        saved = done("snapshots.py", metadata_url, "save", "image", str(source))
        assert saved.startswith(f"saved image {size} bytes")
        done("snapshots.py", metadata_url, "load", "image", str(target))
        assert target.read_bytes() == data
    assert done("snapshots.py", metadata_url, "list") == "names image"
    assert done("snapshots.py", metadata_url, "delete", "image") == "deleted image"
    missing = run("snapshots.py", metadata_url, "load", "image", str(target))
    assert missing.status == 1
    assert "NoNodeError" in missing.stderr


def test_logs_are_created_appended_to_read_and_deleted_by_name(metadata_url: str) -> None:
    def call(*words: str) -> str:
        return done("named_logs.py", metadata_url, *words)

    assert call("list") == "logs"
    assert call("create", "orders") == "created orders"
    assert "LogExistsError" in run("named_logs.py", metadata_url, "create", "orders").stderr
    assert call("create", "bills") == "created bills"
    for text in ("one", "two"):
        assert call("append", "orders", text).startswith("appended ")
    assert call("list") == "logs bills orders"
    assert call("read", "orders") == "log orders\none\ntwo"
    assert call("read", "bills") == "log bills"
    assert call("delete", "orders") == "deleted orders"
    assert "NoSuchLogError" in run("named_logs.py", metadata_url, "read", "orders").stderr
    assert call("list") == "logs bills"
