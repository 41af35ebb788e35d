"""Weak callbacks: a part calls a method of its owner without keeping the owner in memory.

An owner and a part that refer to each other are only freed by a full collection of cycles, which
runs every few minutes. Subscriptions come and go all the time.
"""

from collections.abc import Callable
from weakref import WeakMethod


def weakly(method: Callable[[], None]) -> Callable[[], None]:
    """Return a function that calls a bound method for as long as its object lives."""
    found = WeakMethod(method)

    def call() -> None:
        alive = found()
        if alive is not None:
            alive()

    return call
