"""A flipped bit in any file is never served, never a denial, and reported where it is."""

import pytest

from tests.sampling import sampled
from tests.simulation.storing.cut import Played, play
from tests.simulation.storing.flips import FlipReport, flip_some
from tests.simulation.storing.machine import Shape
from tests.simulation.storing.scripts import SCRIPTS

SHAPES = (Shape(), Shape(engine="interleaved"), Shape(journals=2, shards=2))


def _flip(played: Played, part: float, per_file: int) -> FlipReport:
    return flip_some(played, played.cuts[int(part * (len(played.cuts) - 1))], per_file=per_file)


CASES = [
    (name, shape, part)
    for part in (0.7, 1.0)
    for name in ("adds", "again", "compaction")
    for shape in SHAPES
]


@pytest.mark.parametrize(("name", "shape", "part"), sampled(CASES, every=4))
def test_b14_a_flipped_bit_is_an_error_and_never_an_answer(
    name: str, shape: Shape, part: float
) -> None:
    played = play(SCRIPTS[name], shape)
    report = _flip(played, part, per_file=6)
    assert report.flips > 30
    assert report.refused + report.noticed > 0
