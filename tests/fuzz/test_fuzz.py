"""The fuzzers in their short form. `make fuzz RUNS=n` is the long one."""

import os
import random

import pytest

from tests.fuzz.__main__ import run


@pytest.mark.parametrize(
    ("side", "inputs"),
    [
        ("bookie", 150),
        ("client", 40),
        ("broker", 4000),
        ("rest", 1500),
        ("websocket", 2000),
        ("schemas", 1000),
    ],
)
def test_spoiled_frames_do_no_harm(side: str, inputs: int) -> None:
    # CI judges changes, so it tries the same cases each time.
    first = 0 if os.environ.get("CI") else random.SystemRandom().getrandbits(31)
    findings = run(side, first, inputs)
    assert findings.texts == [], "again: python -m tests.fuzz --runs 1 --side ... --seed ..."
