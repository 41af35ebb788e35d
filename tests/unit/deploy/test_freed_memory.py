"""Memory that was freed serves the next blocks, without a fault for each page."""

import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).parents[3]
SCRIPT = """
import resource
from magnetar.deploy.freed_memory import keep_freed_memory
print(keep_freed_memory())
def churn():
    blocks = [b"x" * (1 << 20) for _ in range(16)]
for _ in range(3):
    churn()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(10):
    churn()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""
FAULTS_IF_GIVEN_BACK = 10 * 16 * 256


def churn(**environment: str) -> tuple[bool, int]:
    """Whether memory is kept, and the page faults of 160 blocks of a megabyte."""
    variables: Mapping[str, str] = {"PYTHONPATH": str(ROOT / "deploy"), **environment}
    finished = subprocess.run(
        [sys.executable, "-c", SCRIPT], env=variables, capture_output=True, text=True, check=True
    )
    kept, faults = finished.stdout.split()
    return kept == "True", int(faults)


def test_blocks_that_come_and_go_touch_no_new_pages() -> None:
    is_kept, faults = churn()
    assert is_kept
    assert faults < FAULTS_IF_GIVEN_BACK / 100


def test_who_set_the_allocators_variables_has_decided() -> None:
    is_kept, _ = churn(MALLOC_TRIM_THRESHOLD_="131072")
    assert not is_kept
