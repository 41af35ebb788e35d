"""A standalone Apache Pulsar of the server distribution, for tests that have it beside us."""

import os
import re
import shutil
import subprocess
import tarfile
from collections.abc import Mapping
from pathlib import Path

from tests.clients.suites import environment, needs
from tests.http_calls import call
from tests.processes import HOST, ServerProcess, free_ports
from tests.waiting import wait_until

VERSION = "4.0.8"
READY_TIMEOUT_S = 180.0
DOWNLOAD_TIMEOUT_S = 900
_COMMAND_S_MAX = 120
_STARTS_MAX = 5
_REGISTERED_ANEW_MAX = 20
"""Of the bookie, until the server is ready; a calm start has none."""


class PulsarServer:
    """One server on its own directory and ports: start, kill -9, start again."""

    def __init__(
        self,
        distribution: Path,
        directory: Path,
        *,
        cluster: str,
        settings: Mapping[str, str] | None = None,
    ) -> None:
        """`settings`: further lines of its configuration."""
        self.directory = directory
        self._log_path = directory / "pulsar.log"
        self.cluster = cluster
        self.distribution = distribution
        self.port, self.http_port, self._bookie_port = free_ports(3)
        directory.mkdir(parents=True, exist_ok=True)
        wanted = {
            "clusterName": cluster,
            "webServicePort": str(self.http_port),
            "brokerServicePort": str(self.port),
            "advertisedAddress": HOST,
            "brokerDeduplicationEnabled": "true",
        }
        text = (distribution / "conf" / "standalone.conf").read_text()
        for name, value in wanted.items():
            text, count = re.subn(rf"(?m)^{name}=.*$", f"{name}={value}", text)
            assert count == 1, name
        text += "".join(f"\n{name}={value}" for name, value in (settings or {}).items())
        self._settings = directory / "standalone.conf"
        self._settings.write_text(text)
        self._process: ServerProcess | None = None

    @property
    def url(self) -> str:
        return f"pulsar://{HOST}:{self.port}"

    @property
    def http_url(self) -> str:
        return f"http://{HOST}:{self.http_port}"

    def start(self) -> None:
        """Start it; returns when it serves.

        After a kill it may find its bookie's old registration and never be done with it: the old
        one is deleted and a new one made a hundred times a second, the bookie comes and goes, and
        no topic is loaded. Then it is started anew.
        """
        for _ in range(_STARTS_MAX):
            registered_anew = self._registrations()
            self._start()
            if self._registrations() - registered_anew < _REGISTERED_ANEW_MAX:
                break
            self.kill()
        else:
            raise AssertionError(f"its bookie comes and goes in each of {_STARTS_MAX} starts")
        # Its own cluster's record comes a moment later than the first answers.
        wait_until(lambda: self.cluster in call(self, "GET", "/admin/v2/clusters", expect=200).json)

    def _registrations(self) -> int:
        """How often its bookie was registered anew, over all starts so far."""
        if not self._log_path.exists():
            return 0
        with self._log_path.open(errors="replace") as log:
            return sum("/ledgers/available/" in line and "was invalidated" in line for line in log)

    def _start(self) -> None:
        self._process = ServerProcess(
            [
                str(self.distribution / "bin" / "pulsar"),
                "standalone",
                "--no-functions-worker",
                "--no-stream-storage",
                *("--config", str(self._settings)),
                *("--metadata-dir", str(self.directory / "metadata")),
                *("--bookkeeper-dir", str(self.directory / "bookkeeper")),
                *("--bookkeeper-port", str(self._bookie_port)),
            ],
            log_path=self._log_path,
            is_ready=lambda line: "messaging service is ready" in line,
            environment=environment(
                PULSAR_LOG_DIR=str(self.directory / "logs"),
                PULSAR_MEM="-Xmx700m -XX:MaxDirectMemorySize=700m",
                PULSAR_STANDALONE_CONF=str(self._settings),
            ),
        )
        self._process.wait_ready(READY_TIMEOUT_S)

    def kill(self) -> None:
        """kill -9."""
        assert self._process is not None
        self._process.kill()


def distribution(place: Path) -> Path:
    """Have the server's distribution, by Maven; skips where there is no Java, or no Maven."""
    needs("java", "mvn")
    artifact = f"org.apache.pulsar:pulsar-server-distribution:{VERSION}:tar.gz:bin"
    fetch = ("mvn", "-q", "-B", "dependency:get", f"-Dartifact={artifact}", "-Dtransitive=false")
    subprocess.run(fetch, env=environment(), check=True, timeout=DOWNLOAD_TIMEOUT_S)
    repository = Path(os.environ.get("M2_REPO", Path.home() / ".m2" / "repository"))
    folder = repository / "org/apache/pulsar/pulsar-server-distribution" / VERSION
    with tarfile.open(folder / f"pulsar-server-distribution-{VERSION}-bin.tar.gz") as archive:
        archive.extractall(place)
    (found,) = place.iterdir()
    assert shutil.which("pulsar", path=str(found / "bin"))
    return found


def pulsar_admin(distribution: Path, http_url: str, *arguments: str) -> str:
    """What a command of Apache Pulsar's `pulsar-admin` prints; it must succeed. Whose server is
    asked, it does not know."""
    done = subprocess.run(
        [str(distribution / "bin" / "pulsar-admin"), "--admin-url", http_url, *arguments],
        env=environment(),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=_COMMAND_S_MAX,
        check=False,
    )
    assert done.returncode == 0, f"{arguments}: {done.stdout[-2000:]}{done.stderr[-2000:]}"
    return done.stdout
