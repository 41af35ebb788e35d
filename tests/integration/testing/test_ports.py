"""Ports that tests give to servers."""

import random
import subprocess
import sys

from tests.processes import ROOT, free_ports, magnetar_environment

_DRAW = "import random; from tests.processes import free_ports; random.seed(1); {then}"


def test_two_runs_on_a_machine_are_given_different_ports() -> None:
    """Both draw the same numbers; the first one still runs when the second one draws."""
    then = "print(*free_ports(20), flush=True); input()"
    with subprocess.Popen(
        [sys.executable, "-c", _DRAW.format(then=then)],
        cwd=ROOT,
        env=magnetar_environment(),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as first:
        assert first.stdout is not None
        given = {int(port) for port in first.stdout.readline().split()}
        random.seed(1)
        try:
            own = set(free_ports(20))
        finally:
            random.seed()
        first.communicate("\n")
    assert len(given) == len(own) == 20
    assert not given & own
