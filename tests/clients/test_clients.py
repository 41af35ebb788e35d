"""Clients of other code bases produce, consume, acknowledge and seek: `make clients` runs this.

Each one lives in a folder of its own, in its own language, and is built by that language's tools
from its registry; none of that is part of `make test`, whose machines need not have them. A client
ends with 0 when all that it was sent was right.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.clients.suites import needs
from tests.standalone import Standalone

CLIENTS = Path(__file__).parent
BUILD_TIMEOUT_S = 600
RUN_TIMEOUT_S = 120
TOPIC = "persistent://public/default/"


TOOLS = {"go": ("go",), "java": ("java", "mvn"), "js": ("node", "npm"), "rust": ()}
"""By the first word of a test's name. The client of Rust comes built from Python's registry."""


@pytest.fixture
def workplace(tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    """A copy of the client's folder, to build in; skips where its tools are missing."""
    name: str = request.node.name.removeprefix("test_")
    needs(*TOOLS[name.split("_")[0]])
    place = tmp_path / name
    shutil.copytree(CLIENTS / name, place)
    return place


def run(place: Path, *command: str, timeout_s: float = BUILD_TIMEOUT_S) -> None:
    environment = {name: os.environ[name] for name in os.environ if name != "PYTHONPATH"}
    done = subprocess.run(
        command, cwd=place, env=environment, capture_output=True, text=True, timeout=timeout_s
    )
    assert done.returncode == 0, f"{command}: {done.stdout[-2000:]}{done.stderr[-2000:]}"


def test_go(server: Standalone, workplace: Path) -> None:
    """The official client: everything."""
    run(workplace, "go", "build", "-o", "client", ".")
    run(workplace, "./client", server.url, f"{TOPIC}go", timeout_s=RUN_TIMEOUT_S)


def test_java(server: Standalone, workplace: Path) -> None:
    """The official client: everything."""
    copy = "dependency:copy-dependencies"
    run(workplace, "mvn", "-q", "-B", copy, f"-DoutputDirectory={workplace / 'lib'}")
    story = ("java", "-cp", "lib/*", "Client.java")
    run(workplace, *story, server.url, f"{TOPIC}java", timeout_s=RUN_TIMEOUT_S)


def test_java_transactions(server: Standalone, workplace: Path) -> None:
    """The official client: messages and acknowledgements in transactions."""
    copy = "dependency:copy-dependencies"
    run(workplace, "mvn", "-q", "-B", copy, f"-DoutputDirectory={workplace / 'lib'}")
    story = ("java", "-cp", "lib/*", "Transactions.java")
    run(workplace, *story, server.url, f"{TOPIC}java-txn", timeout_s=RUN_TIMEOUT_S)


def test_java_v5(server: Standalone, workplace: Path) -> None:
    """The official client of Pulsar 5: plain, partitioned and scalable topics."""
    copy = "dependency:copy-dependencies"
    run(workplace, "mvn", "-q", "-B", copy, f"-DoutputDirectory={workplace / 'lib'}")
    story = ("java", "-cp", "lib/*", "V5.java", server.url, server.http_url, f"{TOPIC}java-v5")
    run(workplace, *story, timeout_s=RUN_TIMEOUT_S)


def test_go_admin(server: Standalone, workplace: Path) -> None:
    """The official admin client: brokers, tenants, namespaces, topics, subscriptions, policies."""
    run(workplace, "go", "build", "-o", "admin", ".")
    run(workplace, "./admin", server.http_url, timeout_s=RUN_TIMEOUT_S)


def test_java_admin(server: Standalone, workplace: Path) -> None:
    """What `pulsar-admin` is made of: the official admin client, by its methods."""
    copy = "dependency:copy-dependencies"
    run(workplace, "mvn", "-q", "-B", copy, f"-DoutputDirectory={workplace / 'lib'}")
    run(workplace, "java", "-cp", "lib/*", "Admin.java", server.http_url, timeout_s=RUN_TIMEOUT_S)


def test_js(server: Standalone, workplace: Path) -> None:
    """Pure JavaScript; it cannot seek."""
    run(workplace, "npm", "install", "--no-audit", "--no-fund")
    address = server.url.removeprefix("pulsar://")
    for half in ("first", "second"):
        story = ("node", "client.js", address, f"{TOPIC}js", half)
        run(workplace, *story, timeout_s=RUN_TIMEOUT_S)


def test_rust(server: Standalone, workplace: Path) -> None:
    """Rust behind a bridge for Python, which cannot seek."""
    run(workplace, sys.executable, "-m", "venv", "env")
    run(workplace, "env/bin/python", "-m", "pip", "install", "-q", "-r", "requirements.txt")
    for half in ("first", "second"):
        story = ("env/bin/python", "client.py", server.url, f"{TOPIC}rust", half)
        run(workplace, *story, timeout_s=RUN_TIMEOUT_S)
