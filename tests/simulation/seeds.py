"""Seeds that no run had before: each run of the tests searches further than the last one."""

from random import SystemRandom

_FIRST = 10_000_000
"""Fixed seeds, and those that stand in documents, lie below."""
_BELOW = 1_000_000_000


def fresh_seeds(count: int, *, first: int = _FIRST, below: int = _BELOW) -> range:
    """Return `count` seeds in a row, at a random place from `first` on and below `below`.

    A test prints a seed that fails with the command that replays it. Keep its plan among the
    regressions (`ARGS=--keep`): the next run does not meet it again.
    """
    begin = first + SystemRandom().randrange(below - first - count)
    return range(begin, begin + count)
