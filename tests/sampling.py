"""The share of an exhaustive test that a run takes: another one each day, and all of it at night.

`make test` takes one of so many steps or cases, `make nightly` all of them. Which one changes with
the day, so that days in a row try all. A run that failed says its number; MAGNETAR_SAMPLE=number
takes the same share again. Under CI, which judges changes, it is the same every time.
"""

import os
import time
from collections.abc import Sequence

import pytest
from _pytest.mark.structures import ParameterSet

_VARIABLE = "MAGNETAR_SAMPLE"
_DAY_S = 24 * 60 * 60


def choose_sample() -> None:
    """Settle which share this run takes, for its workers too: a day may end meanwhile."""
    day = 0 if os.environ.get("CI") else int(time.time() // _DAY_S)
    os.environ.setdefault(_VARIABLE, str(day))


def sample_number() -> int:
    return int(os.environ[_VARIABLE])


def sample_command() -> str:
    """How to take the share of this run again."""
    return f"the same ones by {_VARIABLE}={sample_number()} make test, all by make nightly"


def sampled(cases: Sequence[tuple[object, ...]], *, every: int) -> list[ParameterSet]:
    """Arguments of a test, case by case: one of `every` is for today, the others for the night."""
    today = sample_number() % every
    return [
        pytest.param(
            *case,
            marks=[] if number % every == today else [pytest.mark.nightly],
            id="-".join(map(str, case)),
        )
        for number, case in enumerate(cases)
    ]
