"""Tests outside of the simulators, run with a rule off.

What no simulated run meets is left to the tests that a mutation names (`Mutation.tests`). They run
in a process of their own, in which the rule is off from before their modules are imported:
`pytest -p tests.simulation.mutations.elsewhere` with the mutation's name in `RULE_OFF`.
"""

import os
import re
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.simulation.mutations.mutation import Mutation

RULE_OFF = "MAGNETAR_TESTS_RULE_OFF"
_ROOT = Path(__file__).parents[3]
_FAILED = re.compile(r"^(?:FAILED|ERROR) (\S+?)(?:\[.*)?(?: - .*)?$", re.MULTILINE)
_SECONDS_MAX = 60
"""Of one test: a rule that is off may leave somebody waiting for ever."""
_ALL_SECONDS_MAX = 300
_FAILED_STATUS = 1
_off = ExitStack()


def failing_elsewhere(found: Mutation) -> tuple[str, ...]:
    """Names of the mutation's own tests that fail with its rule off.

    Raises:
        AssertionError: they could not be run.
    """
    if not found.tests:
        return ()
    plugin = __name__
    options = ["-q", "-rfE", "--tb=no", "-p", "no:xdist", "-p", "no:cacheprovider", "-p", plugin]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *options, f"--timeout={_SECONDS_MAX}", *found.tests],
        cwd=_ROOT,
        env={**os.environ, RULE_OFF: found.name},
        capture_output=True,
        text=True,
        timeout=_ALL_SECONDS_MAX,
        check=False,
    )
    assert done.returncode in (0, _FAILED_STATUS), f"{found.name}: {done.stdout}{done.stderr}"
    failed = (name.rpartition("::")[2] for name in _FAILED.findall(done.stdout))
    return tuple(dict.fromkeys(failed))


def pytest_configure(config: pytest.Config) -> None:
    """As a plugin: switch the rule off for the whole run."""
    name = os.environ.get(RULE_OFF)
    if name:
        _off.enter_context(_mutation(name).apply())


def pytest_unconfigure(config: pytest.Config) -> None:
    _off.close()


def _mutation(name: str) -> Mutation:
    # The simulators import this module.
    from tests.simulation.cluster.mutations.registry import MUTATIONS as CLUSTERS
    from tests.simulation.mutations.registry import MUTATIONS as LEDGERS
    from tests.simulation.mutations.storage_registry import STORAGE_MUTATIONS as STORAGE

    return next(each for each in (*LEDGERS, *CLUSTERS, *STORAGE) if each.name == name)
