"""How long a server waits before it tries again what has failed. Pure.

Clients have a backoff of their own (`magnetar.sdk.session`): theirs is shortened at random, since
all of them lose a broker at the same moment.
"""

_DOUBLINGS_MAX = 60
"""Keeps the number small; no first pause is so short that its bound is not reached by then."""


def backoff(first: float, failures: int, most: float) -> float:
    """Return the pause after that many failures in a row, in the unit of `first` and `most`.

    It is `first` after one failure, twice as long after each further one, and never above `most`.
    """
    return min(most, first * 2.0 ** min(failures - 1, _DOUBLINGS_MAX))
