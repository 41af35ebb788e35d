"""Calls to a worker that are made together travel together.

A call that goes to a thread alone costs two changes of threads, which for a read from the page
cache is more than the read. What one turn of the event loop asks for goes as one, and comes back as
one.
"""

import asyncio
from collections.abc import Callable
from functools import partial
from itertools import islice
from typing import TypeVar

from magnetar.ledger.ports import Worker

T = TypeVar("T")

_Call = Callable[[], object]
_Outcome = tuple[object, BaseException | None]


class CallBatches:
    """Gathers calls until the loop's next turn. The event loop owns it."""

    def __init__(self, calls_max: int) -> None:
        """At most `calls_max` calls go together, since the first waits for the last."""
        assert calls_max > 0
        self._calls_max = calls_max
        self._waiting: dict[Worker, list[tuple[_Call, asyncio.Future[object]]]] = {}

    async def run(self, worker: Worker, call: Callable[[], T]) -> T:
        """Run the call on the worker.

        Raises:
            whatever the call raises.
        """
        loop = asyncio.get_running_loop()
        future: asyncio.Future[object] = loop.create_future()
        if not self._waiting:
            loop.call_soon(self._send)
        self._waiting.setdefault(worker, []).append((call, future))
        return await future  # type: ignore[return-value]  # the call's own result

    def _send(self) -> None:
        waiting, self._waiting = self._waiting, {}
        for worker, each in waiting.items():
            calls = iter(each)
            while batch := list(islice(calls, self._calls_max)):
                worker.submit(
                    partial(_run_all, [call for call, _ in batch]),
                    partial(_tell_all, [future for _, future in batch]),
                )


def _run_all(calls: list[_Call]) -> list[_Outcome]:
    outcomes: list[_Outcome] = []
    for call in calls:
        try:
            outcomes.append((call(), None))
        except BaseException as error:  # noqa: BLE001  # it is handed to the caller
            outcomes.append((None, error))
    return outcomes


def _tell_all(
    futures: list[asyncio.Future[object]],
    outcomes: list[_Outcome] | None,
    failure: BaseException | None,
) -> None:
    if outcomes is None:
        outcomes = [(None, failure)] * len(futures)
    for future, (result, error) in zip(futures, outcomes, strict=True):
        if future.done():
            continue  # who waited was cancelled
        if error is None:
            future.set_result(result)
        else:
            future.set_exception(error)
