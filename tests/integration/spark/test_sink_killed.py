"""The sink stores each row once while its tasks fail and its driver is killed."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pulsar
import pytest

from tests.http_calls import admin, call
from tests.processes import ROOT, magnetar_environment
from tests.standalone import Standalone
from tests.waiting import wait_until

pytestmark = pytest.mark.timeout(900)
_FILES = 6
_LINES = 4_000
_TIMEOUT_S = 240.0
_DRIVER = Path(__file__).with_name("sink_driver.py")


def _start(server: Standalone, topic: str, directory: Path) -> "subprocess.Popen[bytes]":
    environment = magnetar_environment()
    environment["PYTHONPATH"] = os.pathsep.join([str(ROOT), environment["PYTHONPATH"]])
    with (directory / "driver.log").open("ab") as log:
        return subprocess.Popen(
            [sys.executable, str(_DRIVER), server.url, server.http_url, topic, str(directory)],
            env=environment,
            cwd=directory,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )


def test_each_row_is_there_once_after_kill_9_of_the_driver(
    server: Standalone, client: pulsar.Client, topic: str, tmp_path: Path
) -> None:
    (tmp_path / "input").mkdir()
    for number in range(_FILES):
        lines = (f"{number:02d} {line:06d}\n" for line in range(_LINES))
        (tmp_path / "input" / f"{number}.txt").write_text("".join(lines))
    path = topic.replace("://", "/")
    admin(server, "PUT", path)

    def stored() -> int:
        answer = call(server, "GET", f"{path}/stats")
        if answer.status != 200:
            return 0  # the topic is being loaded anew, because it deduplicates from now on
        return int(answer.json["msgInCounter"])

    for rows in (_LINES // 2, 3 * _LINES):  # in the first batch, and in a later one
        driver = _start(server, topic, tmp_path)

        def is_time(wanted: int = rows, driver: "subprocess.Popen[bytes]" = driver) -> bool:
            return stored() >= wanted or driver.poll() is not None

        wait_until(is_time, f"{rows} rows are written", within_s=_TIMEOUT_S)
        os.killpg(driver.pid, signal.SIGKILL)
        driver.wait()
    driver = _start(server, topic, tmp_path)
    status = driver.wait(_TIMEOUT_S)
    assert status == 0, (tmp_path / "driver.log").read_text(errors="replace")[-3000:]

    reader = client.create_reader(topic, pulsar.MessageId.earliest)
    found = []
    while reader.has_message_available():
        found.append(reader.read_next(30_000).data().decode())
    reader.close()
    expected = [f"{number:02d} {line:06d}" for number in range(_FILES) for line in range(_LINES)]
    assert sorted(found) == expected
