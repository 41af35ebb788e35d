"""Help pages come at once: they import nothing that only the work of a command needs."""

import subprocess
import sys

import pytest

from tests.processes import magnetar_environment

HEAVY = (
    "asyncio",
    "structlog",
    "google.protobuf",
    "magnetar.bookie",
    "magnetar.broker",
    "magnetar.ledger",
    "magnetar.sdk",
)
PROGRAM = """
import sys
from magnetar.deploy.cli import app
try:
    app(sys.argv[1:], prog_name="magnetar")
except SystemExit as end:
    assert not end.code, end.code
print("imported:", *sorted(sys.modules))
"""


@pytest.mark.parametrize(
    "line",
    [
        "--help",
        "produce --help",
        "perf produce --help",
        "cluster --help",
        "doctor --help",
        "context set --help",
        "admin namespaces --help",
        "admin namespaces set-retention --help",
        "admin topicPolicies --help",
        "admin subscriptions reset --help",
        "pipeline archive --help",
        "bookie-tool --help",
    ],
)
def test_a_help_page_imports_nothing_heavy(line: str) -> None:
    ended = subprocess.run(
        [sys.executable, "-c", PROGRAM, *line.split()],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
        env={**magnetar_environment(), "COLUMNS": "100"},
    )
    shown, _, modules = ended.stdout.rpartition("imported:")
    assert "Usage" in shown
    imported = modules.split()
    assert [each for each in HEAVY if each in imported] == []
