"""A reader follows a message, and a policy, through few files."""

import json
import subprocess
import sys

from tests.processes import ROOT

MESSAGE_FILES_MAX = 35
RETENTION_FILES_MAX = 20
"""Beside those that any change by HTTP crosses."""


def test_a_message_and_a_change_of_retention_cross_few_files() -> None:
    ran = subprocess.run(
        [sys.executable, "-m", "tests.way", "--json"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    found = json.loads(ran.stdout)
    message = found["message"]
    assert len(message) <= MESSAGE_FILES_MAX, sorted(message)
    own = [path for path, file in found["retention"].items() if not file["is_ordinary"]]
    assert len(own) <= RETENTION_FILES_MAX, own
