"""Other masters than local: executors in processes of their own, started here."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pulsar
import pytest

from tests.integration.pulsar_client.support import publish_to
from tests.integration.spark.spark_cluster import standalone_cluster
from tests.integration.spark.support import options_for
from tests.processes import ROOT
from tests.standalone import Standalone

_TIMEOUT_S = 500
VALUES = [b"value-%04d" % number for number in range(2_000)]


@contextmanager
def _master(kind: str, directory: Path) -> Iterator[str]:
    """The URL of a master with two workers."""
    if kind == "local-cluster":
        yield "local-cluster[2,1,600]"
    else:
        with standalone_cluster(directory, workers=2) as url:
            yield url


def _run_program(*arguments: str) -> dict[str, int]:
    """A session of its own: there is one in a process. Gives what masters_program.py prints."""
    finished = subprocess.run(
        [sys.executable, "-m", "tests.integration.spark.masters_program", *arguments],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        capture_output=True,
        text=True,
        timeout=_TIMEOUT_S,
        check=False,
    )
    said = finished.stderr
    assert finished.returncode == 0, said[max(0, said.find("Traceback")) :][:3_000]
    found: dict[str, int] = json.loads(finished.stdout.splitlines()[-1])
    return found


def _values(client: pulsar.Client, topic: str) -> list[bytes]:
    reader = client.create_reader(topic, pulsar.MessageId.earliest)
    found = []
    while reader.has_message_available():
        found.append(reader.read_next(30_000).data())
    reader.close()
    return found


@pytest.mark.timeout(900)
@pytest.mark.parametrize("kind", ["local-cluster", "standalone master"])
def test_source_and_sink_on_executors_in_processes_of_their_own(
    server: Standalone, client: pulsar.Client, topic: str, tmp_path: Path, kind: str
) -> None:
    """Batch and stream, on two executors."""
    publish_to(client, topic, VALUES, batching_enabled=True, batching_max_messages=100)
    options = options_for(server, topic=topic, sliceBytes="4000")
    copies = [f"{topic}-batch", f"{topic}-stream"]
    with _master(kind, tmp_path) as url:
        found = _run_program(url, str(tmp_path), json.dumps(options), ",".join(copies))
    assert found == {"rows": len(VALUES), "executors": 2}
    for copy in copies:
        # Tasks write beside each other: the order is that within each of them.
        assert sorted(_values(client, copy)) == VALUES
