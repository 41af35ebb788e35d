"""Help pages come at once: they import nothing that only the work of a command needs."""

import resource
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


TRIES = 6
"""A busy machine adds to the processor time of a process: the best of some runs counts."""


def _processor_s(line: str) -> float:
    """The processor time of one run of `magnetar`, from its start to its end."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(
        [sys.executable, "-m", "magnetar.deploy.entry", *line.split()],
        stdout=subprocess.DEVNULL,
        env={**magnetar_environment(), "COLUMNS": "100"},
        check=True,
        timeout=60,
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


@pytest.mark.parametrize(
    ("line", "at_most_s"),
    [
        ("--help", 0.4),
        ("admin namespaces --help", 0.6),
        ("admin topicPolicies --help", 0.6),
        ("pipeline archive --help", 0.6),
    ],
)
def test_a_help_page_takes_little_processor_time(line: str, at_most_s: float) -> None:
    took: list[float] = []
    while not took or (min(took) > at_most_s and len(took) < TRIES):
        took.append(_processor_s(line))
    assert min(took) <= at_most_s, took
