"""The load of the storage's bench, in a process of its own that gives way to the bookie.

On this machine the client shares the processors with the bookie; where it matters, it has a machine
of its own. With the same right to a processor it would now and then hold up a thread of the bookie
that others in there wait for, and the bookie would be blamed for it.
"""

import multiprocessing
import os
from collections.abc import Callable, Coroutine
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from typing import Any, ParamSpec, Self, TypeVar

import uvloop

P = ParamSpec("P")
T = TypeVar("T")

_NICENESS = 10


class LoadProcess:
    """Runs loads one after another; a context manager. The process starts with the first load."""

    def __init__(self) -> None:
        self._executor = ProcessPoolExecutor(
            max_workers=1,
            mp_context=multiprocessing.get_context("spawn"),
            initializer=os.nice,
            initargs=(_NICENESS,),
        )

    def run(
        self, load: Callable[P, Coroutine[Any, Any, T]], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        """What the load returns."""
        return self._executor.submit(_run, partial(load, *args, **kwargs)).result()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._executor.shutdown()


def _run(load: Callable[[], Coroutine[Any, Any, T]]) -> T:
    return uvloop.run(load())
