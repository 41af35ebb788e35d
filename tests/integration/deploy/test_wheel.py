"""The wheel in empty environments: the client is small, and with `server` the tour runs.

Packages come from wherever pip gets them: its index, or PIP_FIND_LINKS. Without either the tests
are skipped.
"""

import shutil
import subprocess
import sys
import tarfile
import venv
from email.parser import HeaderParser
from pathlib import Path
from zipfile import ZipFile

import pytest

from tests.processes import ROOT, free_ports, magnetar_environment
from tests.standalone import Standalone

CLIENT_PACKAGES_MAX = 15
CLIENT_BYTES_MAX = 45_000_000
INSTALL_S = 600
TOUR_S = 240
# Those that make every environment are not ours.
NOT_OURS = {"pip", "setuptools", "wheel"}

pytestmark = pytest.mark.timeout(INSTALL_S + TOUR_S)

EXCHANGE = """
import asyncio, sys
from magnetar.sdk import Client, Compression, ConsumerSettings, InitialPosition, ProducerSettings
from magnetar.sdk.errors import MissingPackageError

async def main() -> None:
    async with Client(sys.argv[1]) as client:
        producer = await client.producer("wheel", ProducerSettings(compression=Compression.LZ4))
        await producer.send(b"Hello, world")
        earliest = ConsumerSettings(initial_position=InitialPosition.EARLIEST)
        consumer = await client.consumer("wheel", "sdk", earliest)
        print((await consumer.receive()).data)
        try:
            await client.producer("wheel", ProducerSettings(compression=Compression.ZSTD))
        except MissingPackageError as error:
            print(error)
    try:
        from magnetar.sdk import FileKeyReader
    except MissingPackageError as error:
        print(error)

asyncio.run(main())
"""


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Wheel and source distribution of the sources as they are."""
    output = tmp_path_factory.mktemp("dist")
    script = ROOT / "deploy" / "bootstrap" / "dist.py"
    command = [sys.executable, str(script), "--working-tree", "--output", str(output)]
    subprocess.run(command, check=True, capture_output=True)
    return output


def wheel_of(dist: Path) -> Path:
    (found,) = dist.glob("*.whl")
    return found


class Environment:
    """A virtual environment with what pip installs for a requirement, and nothing else."""

    def __init__(self, folder: Path, requirement: str) -> None:
        self.folder = folder
        venv.create(folder, with_pip=True)
        self.python = folder / "bin" / "python"
        self.before = self.bytes()
        command = [str(self.python), "-m", "pip", "install", "--quiet", requirement]
        ended = subprocess.run(
            command, capture_output=True, text=True, timeout=INSTALL_S, check=False
        )
        if ended.returncode and "No matching distribution" in ended.stderr:
            pytest.skip(f"packages cannot be had here: {ended.stderr.strip().splitlines()[-1]}")
        assert ended.returncode == 0, ended.stderr

    def bytes(self) -> int:
        """Bytes of all installed files."""
        files = (path for path in self.folder.rglob("*") if path.is_file())
        return sum(path.lstat().st_size for path in files if not path.is_symlink())

    def packages(self) -> set[str]:
        """Names of the installed packages."""
        code = (
            "from importlib.metadata import distributions\n"
            "print(*{each.metadata['Name'].lower() for each in distributions()})"
        )
        return set(self.run("-c", code).stdout.split()) - NOT_OURS

    def run(self, *arguments: str, timeout_s: float = 120) -> "subprocess.CompletedProcess[str]":
        """Run this environment's Python, away from the sources."""
        environment = {
            name: value for name, value in magnetar_environment().items() if name != "PYTHONPATH"
        }
        return subprocess.run(
            [self.python, *arguments],
            cwd=self.folder,
            env=environment,
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
        )


def test_the_client_is_small_works_alone_and_says_what_it_does_without(
    dist: Path, tmp_path: Path
) -> None:
    client = Environment(tmp_path / "client", str(wheel_of(dist)))
    packages = client.packages()
    assert "magnetar" in packages
    assert len(packages) <= CLIENT_PACKAGES_MAX, sorted(packages)
    installed = client.bytes() - client.before
    assert installed <= CLIENT_BYTES_MAX, f"{installed / 1e6:.1f} MB"

    with Standalone(tmp_path / "data") as server:
        ended = client.run("-c", EXCHANGE, server.url)
    assert ended.returncode == 0, ended.stderr
    message, codec, encryption = ended.stdout.splitlines()
    assert message == "b'Hello, world'"
    assert codec.endswith("pip install 'magnetar[compression]'")
    assert encryption.endswith("pip install 'magnetar[encryption]'")

    command = client.run("-m", "magnetar.deploy.entry", "--help")
    assert command.returncode == 9
    assert command.stderr.endswith("pip install 'magnetar[server]'\n")
    assert len(command.stderr.splitlines()) == 1
    shutil.rmtree(client.folder)


@pytest.mark.nightly
def test_the_tour_runs_in_an_empty_environment_with_the_server(dist: Path, tmp_path: Path) -> None:
    server = Environment(tmp_path / "server", f"{wheel_of(dist)}[server]")
    port, http_port = free_ports(2)
    ended = server.run(
        *("-m", "magnetar.deploy.tour", "--data", str(tmp_path / "data"), "--exit-after-tour"),
        *("--port", str(port), "--http-port", str(http_port)),
        timeout_s=TOUR_S,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    version = server.run("-m", "magnetar.deploy.entry", "--version").stdout
    assert wheel_of(dist).name.split("-")[1] in version
    shutil.rmtree(server.folder)


def test_the_source_distribution_has_the_product_and_no_tests(dist: Path) -> None:
    (path,) = dist.glob("*.tar.gz")
    with tarfile.open(path) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert not [name for name in names if name.startswith(("tests/", ".ci/", "docs/"))]
    assert {"pyproject.toml", "README.md", "LICENSE", "deploy/docker/Dockerfile"} <= names
    assert "sdk/magnetar/sdk/wire/pulsar_pb2.py" in names


def test_the_wheel_says_what_an_index_shows(dist: Path) -> None:
    with ZipFile(wheel_of(dist)) as wheel:
        (name,) = [each for each in wheel.namelist() if each.endswith(".dist-info/METADATA")]
        metadata = HeaderParser().parsestr(wheel.read(name).decode())
    for header in ("Summary", "Keywords", "License-Expression", "Requires-Python", "Author"):
        assert metadata[header], header
    assert len(metadata.get_all("Classifier", [])) > 5
    assert {"server", "compression", "encryption"} <= set(metadata.get_all("Provides-Extra", []))
