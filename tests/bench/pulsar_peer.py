"""Apache Pulsar as a peer: `pulsar standalone`, with bookies of its own, from Maven Central.

Its journals are synced like Magnetar's, which its `standalone.conf` does not do by default. Topics
keep their messages and are not deleted. Everything else is as shipped. Memory is the proportional
set size (Pss): its garbage collector maps the heap three times, so the resident size is misleading.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

from magnetar.deploy.cluster_ports import is_free
from tests.http_calls import call
from tests.processes import (
    HOST,
    ROOT,
    ServerProcess,
    free_ports,
)
from tests.waiting import wait_until

VERSION = "4.0.8"
WARM_MESSAGES = 600_000
"""Number of messages after which the Java machine has compiled its hot code; before that, a message
costs it twice as much."""

_ARTIFACT = f"org.apache.pulsar:pulsar-server-distribution:{VERSION}:tar.gz:bin"
_HOME = ROOT / ".venv" / f"pulsar-{VERSION}"
_FETCH_TIMEOUT_S = 900.0
_READY_TIMEOUT_S = 120.0


def why_missing() -> str:
    """Return why it cannot run here; empty: it can."""
    missing = [program for program in ("java", "mvn") if shutil.which(program) is None]
    return f"{' and '.join(missing)} not found" if missing else ""


def distribution() -> Path:
    """Return the directory of the server, which is fetched and unpacked once.

    Raises:
        OSError, subprocess.SubprocessError: it cannot be fetched or unpacked.
    """
    if (_HOME / "bin" / "pulsar").exists():
        return _HOME
    fetched = _HOME.with_suffix(".fetched")
    shutil.rmtree(fetched, ignore_errors=True)
    fetched.mkdir(parents=True)
    goal = ["dependency:copy", f"-Dartifact={_ARTIFACT}", f"-DoutputDirectory={fetched}"]
    # Stdout holds the benchmark's JSON, and Maven ends with an escape sequence even when quiet.
    subprocess.run(
        ["mvn", "--quiet", "--batch-mode", *goal],
        check=True,
        cwd=fetched,
        stdout=sys.stderr,
        timeout=_FETCH_TIMEOUT_S,
    )
    (archive,) = fetched.glob("*.tar.gz")
    # Not tarfile: its filter against paths outside of the directory came with Python 3.11.4.
    subprocess.run(["tar", "-xzf", archive, "-C", fetched], check=True)
    archive.unlink()
    (unpacked,) = fetched.iterdir()
    unpacked.rename(_HOME)
    fetched.rmdir()
    return _HOME


class ApachePulsar:
    """One process with metadata store, bookies and broker, and its data below `directory`."""

    def __init__(self, directory: Path, *, bookies: int) -> None:
        home = distribution()
        directory.mkdir(parents=True)
        (self._port, self._http_port), first = free_ports(2), _free_row(bookies)
        changes = {
            "brokerServicePort": self._port,
            "webServicePort": self._http_port,
            "bindAddress": HOST,
            "advertisedAddress": HOST,
            "journalSyncData": "true",
            "brokerDeleteInactiveTopicsEnabled": "false",
            "defaultRetentionTimeInMinutes": -1,
            "defaultRetentionSizeInMB": -1,
        }
        if bookies >= 3:
            changes |= {
                "managedLedgerDefaultEnsembleSize": 3,
                "managedLedgerDefaultWriteQuorum": 3,
                "managedLedgerDefaultAckQuorum": 2,
            }
        configuration = directory / "standalone.conf"
        shipped = (home / "conf" / "standalone.conf").read_text().splitlines()
        kept = [line for line in shipped if line.partition("=")[0] not in changes]
        configuration.write_text(
            "\n".join([*kept, *(f"{name}={value}" for name, value in changes.items()), ""])
        )
        self._server = ServerProcess(
            [
                *(str(home / "bin" / "pulsar"), "standalone"),
                *("--no-functions-worker", "--no-stream-storage"),
                *("--config", str(configuration)),
                *("--metadata-dir", str(directory / "metadata")),
                *("--bookkeeper-dir", str(directory / "bookies")),
                *("--bookkeeper-port", str(first)),
                *("--num-bookies", str(bookies)),
                *("--advertised-address", HOST),
            ],
            log_path=directory / "log",
            is_ready=lambda line: "messaging service is ready" in line,
            environment={
                **os.environ,
                "PULSAR_LOG_DIR": str(directory / "logs"),
                "PULSAR_STANDALONE_CONF": str(configuration),
            },
        )

    @property
    def port(self) -> int:
        return self._port

    @property
    def url(self) -> str:
        return f"pulsar://{HOST}:{self._port}"

    @property
    def http_url(self) -> str:
        return f"http://{HOST}:{self._http_port}"

    def wait_ready(self) -> None:
        self._server.wait_ready(_READY_TIMEOUT_S)
        # It creates the namespace a moment after it has reported that it is ready.
        wait_until(self._has_namespace, "public/default of Apache Pulsar")

    def _has_namespace(self) -> bool:
        answer = call(self, "GET", "/admin/v2/namespaces/public")
        return answer.status == 200 and "public/default" in answer.json

    @property
    def pid(self) -> int:
        """Process id of the script that runs it."""
        return self._server.pid

    def stop(self) -> None:
        self._server.kill()


def _free_row(count: int) -> int:
    """Return the first of so many consecutive ports that are free."""
    while True:
        first = free_ports(1)[0]
        if all(is_free(HOST, first + offset) for offset in range(1, count)):
            return first
