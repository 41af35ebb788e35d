"""The share of an exhaustive test that a run takes: another one each day, and all of it at night.

`make test` takes one of every so many steps or cases, `make nightly` all of them. The choice
changes with the day, so that days in a row try all. A failed run prints its number;
MAGNETAR_SAMPLE=number repeats its share. Under CI, which judges changes, the share is always the
same.
"""

import os
import time
from collections.abc import Sequence

import pytest
from _pytest.mark.structures import ParameterSet

_VARIABLE = "MAGNETAR_SAMPLE"
_DAY_S = 24 * 60 * 60


def choose_sample() -> None:
    """Choose the share of this run, for its workers too: the day may end meanwhile."""
    day = 0 if os.environ.get("CI") else int(time.time() // _DAY_S)
    os.environ.setdefault(_VARIABLE, str(day))


def sample_number() -> int:
    return int(os.environ[_VARIABLE])


def sample_command() -> str:
    """Return how to repeat the share of this run."""
    return f"the same ones by {_VARIABLE}={sample_number()} make test, all by make nightly"


def sampled(cases: Sequence[tuple[object, ...]], *, every: int) -> list[ParameterSet]:
    """Return the arguments of a test, case by case: one of `every` runs today, the others at
    night."""
    today = sample_number() % every
    return [
        pytest.param(
            *case,
            marks=[] if number % every == today else [pytest.mark.nightly],
            id="-".join(map(str, case)),
        )
        for number, case in enumerate(cases)
    ]
