"""The programs of docs/guide run, and print what they should; the pages name them."""

import re
import subprocess
import sys
from collections.abc import Iterator

import pytest

from magnetar.testing import Broker
from tests.processes import ROOT, magnetar_environment

EXAMPLES = ROOT / "docs" / "examples"
GUIDE = ROOT / "docs" / "guide"

PRINTED = {
    "first_message.py": ["b'hello' k {'lang': 'en'}"],
    "workers.py": [
        "done: jobs-mail",
        "given up: persistent://public/default/jobs-print",
        "refused, delivery 1",
        "refused, delivery 2",
        "refused, delivery 3",
    ],
    "producing.py": [
        "customer 0 0",
        "customer 0 2",
        "customer 1 1",
        "customer 1 3",
        "stored 4",
    ],
    "table_view.py": ["['apples']", "{'apples': 5, 'pears': 4}"],
    "reading.py": ["batch of 2", "batch of 4", "batch of 4", "sum 45"],
    "over_web_socket.py": ["b'greetings' k"],
    "web_service.py": ["answers 201 201", 'stored 0 {"number": 0}', 'stored 1 {"number": 1}'],
    "taskiq_jobs.py": ["1 + 2 = 3", "3 + 4 = 7", "that was all"],
    "scalable.py": [
        "ledger account 0 0",
        "ledger account 0 2",
        "ledger account 1 1",
        "ledger account 1 3",
        "read 4",
    ],
}


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker() as running:
        yield running


@pytest.mark.parametrize("name", list(PRINTED))
def test_the_examples_run(broker: Broker, name: str) -> None:
    url = broker.web_socket_url if name == "over_web_socket.py" else broker.service_url
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / name), url],
        env=magnetar_environment(),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    # Jobs of several topics come in any order.
    assert sorted(done.stdout.splitlines()) == PRINTED[name]


def test_the_pages_name_every_example_that_is_tested() -> None:
    pages = "".join(page.read_text() for page in GUIDE.glob("*.md"))
    named = set(re.findall(r"\(\.\./examples/(\w+\.py)\)", pages))
    assert named == set(PRINTED)
