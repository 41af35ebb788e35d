"""The load of the storage benchmark, in a process of its own with lower priority than the bookie.

On this machine the client shares the processors with the bookie; in production it has a machine of
its own. With equal priority it would sometimes delay a thread of the bookie that other threads wait
for, and the delay would count as the bookie's.
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
        """Run a load in the process; return its result."""
        return self._executor.submit(_run, partial(load, *args, **kwargs)).result()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._executor.shutdown()


def _run(load: Callable[[], Coroutine[Any, Any, T]]) -> T:
    return uvloop.run(load())
