"""Files of a server at rest are damaged at random: nothing is lost in silence (`damages.py`)."""

import random
from pathlib import Path

import pytest

from tests.chaos.damages import Original, strike

_DAMAGES = 100


@pytest.mark.nightly
@pytest.mark.timeout(3600)
def test_a_damage_is_refused_with_a_remedy_or_told_of_or_does_no_harm(tmp_path: Path) -> None:
    seed = random.SystemRandom().getrandbits(32)
    original = Original(tmp_path / "original")
    original.make()
    outcomes = [strike(original, damage, tmp_path) for damage in original.damages(_DAMAGES, seed)]
    problems = [outcome.problem for outcome in outcomes if outcome.problem]
    assert not problems, f"seed {seed}\n" + "\n".join(problems)
    assert any(outcome.refusal for outcome in outcomes)
    assert any(not outcome.refusal for outcome in outcomes)
