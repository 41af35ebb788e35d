"""Weak callbacks: a part calls a method of its owner without keeping the owner in memory.

An owner and a part that refer to each other are only freed by a full collection of cycles, which
runs every few minutes. Subscriptions come and go all the time.
"""

from collections.abc import Callable
from typing import ParamSpec, TypeVar
from weakref import WeakMethod

P = ParamSpec("P")
T = TypeVar("T")


def weakly(method: Callable[P, T]) -> Callable[P, T | None]:
    """Return a function that calls a bound method for as long as its object lives; after that, it
    does nothing and returns None."""
    found = WeakMethod(method)

    def call(*args: P.args, **kwargs: P.kwargs) -> T | None:
        alive = found()
        return None if alive is None else alive(*args, **kwargs)

    return call
