"""What a worker process of Spark does for all its tasks."""

import subprocess
import sys

import pytest

_PROGRAM = """
import resource

from magnetar.arrow.stored.slice_reader import settle_worker

def faults_of_some_work():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(100):
        blocks = [b"x" * (1 << 20) for _ in range(8)]
        del blocks
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

settle_worker(0)
faults_of_some_work()
print(faults_of_some_work())
"""


@pytest.mark.skipif(sys.platform != "linux", reason="another C library")
def test_a_worker_does_not_fetch_its_memory_from_the_system_again_and_again() -> None:
    # Of its own, since what is settled once is settled for the life of a process.
    found = subprocess.run(
        [sys.executable, "-c", _PROGRAM], capture_output=True, text=True, check=True, timeout=60
    )
    pages = 100 * 8 * (1 << 20) // 4096
    assert int(found.stdout) < pages // 20
