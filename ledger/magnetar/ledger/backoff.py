"""The pause before a server tries again after failures. Pure.

Clients have another backoff (`magnetar.sdk.session`). It is shortened at random, since all clients
lose a broker at the same moment.
"""

_DOUBLINGS_MAX = 60
"""Bounds the exponent; every first pause reaches its limit in fewer doublings."""


def backoff(first: float, failures: int, most: float) -> float:
    """Return the pause after that many failures in a row, in the unit of `first` and `most`.

    It is `first` after one failure, doubles with each further one, and never exceeds `most`.
    """
    return min(most, first * 2.0 ** min(failures - 1, _DOUBLINGS_MAX))
