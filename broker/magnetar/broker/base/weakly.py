"""Calls back to whoever made an object, without keeping it alive.

An object and a part of it that knows it stay in memory until a full collection of cycles, which
comes every few minutes. Subscriptions come and go all the time.
"""

from collections.abc import Callable
from weakref import WeakMethod


def weakly(method: Callable[[], None]) -> Callable[[], None]:
    """Return what calls a bound method for as long as its object lives, and then does nothing."""
    found = WeakMethod(method)

    def call() -> None:
        alive = found()
        if alive is not None:
            alive()

    return call
