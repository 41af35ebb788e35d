"""The commands of docs/tasks.md run as they stand there, and are no more than a peer needs."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.http_calls import admin
from tests.processes import ROOT, magnetar_environment
from tests.standalone import Standalone

COMMAND_S = 120
NOT_RUN = {11: "a server on its default ports; the server of this test is one", 2: "a page"}
EXPECTED = {
    1: "ok",
    3: "billing",
    5: "message 0",
    15: "message 9",
    16: "one pear",
    17: "ann: one pear",
    19: '{"number": 7}',
}
"""What a command prints, among other things."""


@dataclass(frozen=True, slots=True)
class Task:
    """A row of the page."""

    number: int
    here: list[str]
    here_count: int
    peer: list[str]
    peer_count: int
    source: str


def _spans(cell: str) -> list[str]:
    return [each.replace(r"\|", "|") for each in re.findall(r"`([^`]+)`", cell)]


def _tasks() -> Iterator[Task]:
    for line in (ROOT / "docs" / "tasks.md").read_text().splitlines():
        if re.match(r"\| \d+ \|", line):
            cells = [each.strip() for each in re.split(r"(?<!\\)\|", line)[1:-1]]
            number, _, here, here_count, peer, peer_count, source = cells
            yield Task(
                int(number), _spans(here), int(here_count), _spans(peer), int(peer_count), source
            )


TASKS = list(_tasks())


def _commands(spans: list[str]) -> int:
    return sum(len(each.split(" | ")) for each in spans)


def test_there_are_ten_tasks_of_an_operator_and_ten_of_a_developer() -> None:
    assert [each.number for each in TASKS] == list(range(1, 21))


@pytest.mark.parametrize("task", TASKS, ids=lambda task: str(task.number))
def test_a_task_takes_no_more_here_than_with_the_best_peer(task: Task) -> None:
    assert task.here_count <= task.peer_count
    if task.here:
        assert (_commands(task.here), _commands(task.peer)) == (task.here_count, task.peer_count)
    assert re.fullmatch(r"\[[^]]+\]\(https://\S+\)", task.source)


@dataclass(frozen=True, slots=True)
class Shell:
    """A shell in a folder, whose commands find the server."""

    folder: Path
    environment: dict[str, str]

    def run(self, line: str) -> str:
        """Run a line to its end; what it printed."""
        ended = subprocess.run(
            ["sh", "-c", line],
            cwd=self.folder,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=COMMAND_S,
            check=False,
        )
        assert ended.returncode == 0, f"{line}\n{ended.stdout}\n{ended.stderr}"
        return ended.stdout


def _prepared(server: Standalone, folder: Path) -> Shell:
    """A topic with ten messages and a subscription, and the files that the commands name."""
    schema = {"type": "record", "name": "Order", "fields": [{"name": "number", "type": "int"}]}
    upload = {"type": "AVRO", "schema": json.dumps(schema), "properties": {}}
    (folder / "order.json").write_text(json.dumps(upload))
    (folder / "lines").write_text("ann:two\nbob:three\n")
    (folder / "picture.png").write_bytes(bytes(range(256)))
    (folder / "ten").write_text("".join(f"message {number}\n" for number in range(10)))
    place = "/admin/v2/persistent/public/default/orders"
    admin(server, "PUT", place)
    admin(server, "PUT", f"{place}/subscription/billing")
    shell = Shell(
        folder,
        {
            **magnetar_environment(),
            "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]),
            "MAGNETAR_URL": server.url,
            "MAGNETAR_ADMIN_URL": server.http_url,
            "MAGNETAR_CONTEXTS": str(folder / "contexts.toml"),
        },
    )
    shell.run("magnetar produce orders < ten")
    shell.run(f"magnetar context set dev --url {server.url} --admin-url {server.http_url}")
    return shell


@pytest.mark.timeout(20 * COMMAND_S)
def test_the_commands_of_the_page_do_their_tasks(tmp_path: Path) -> None:
    with Standalone(tmp_path / "data") as server:
        shell = _prepared(server, tmp_path)
        for task in TASKS:
            if task.number in NOT_RUN:
                continue
            lines = [
                # For ever is too long here.
                each.replace("--follow", "--follow --count 10")
                for each in task.here
            ]
            printed = "".join(map(shell.run, lines))
            assert EXPECTED.get(task.number, "") in printed, task.number
        assert shell.run("magnetar read copies --last 1 --format '%k %v'") == "bob three\n"
        place = "/admin/v2/persistent/public/default/wide/partitions"
        assert admin(server, "GET", place)["partitions"] == 8
        picture = tmp_path / "copy.png"
        shell.run("magnetar read files --count 1 --raw > copy.png")
        assert picture.read_bytes() == (tmp_path / "picture.png").read_bytes()
