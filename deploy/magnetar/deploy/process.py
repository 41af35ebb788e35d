"""The life of a server process: start, say `ready`, wait for SIGTERM or SIGINT, drain, end with 0.

A signal before it is ready breaks the start off. A second signal while that, or a drain, is under
way ends the process at once, as it did before the server was there.

SIGHUP, when its terminal is closed, is a reason to drain too, and none to hurry: more than one
comes then. Under `nohup` it is ignored.

While it serves, full collections of Python's cycle collector come by the clock (`FullCollections`).
"""

import asyncio
import gc
import signal
import sys
import time
from collections.abc import Awaitable, Callable
from typing import Protocol

import structlog
import uvloop

from magnetar.deploy.freed_memory import give_freed_memory_back

_log = structlog.get_logger(__name__)

_SIGNALS = (signal.SIGTERM, signal.SIGINT)

_SWITCH_INTERVAL_S = 0.001
"""After which a thread that works gives way to one that waits. The event loop waits for each worker
in turn; with the interpreter's own 5 ms that is more than it should."""

_COLLECTIONS_SHARE_MAX = 1 / 4000
"""Share of the time for full collections: a quarter of what may hold up the event loop by more than
it should in one of a thousand moments."""
_COLLECTION_INTERVAL_S_MIN = 60.0
_COLLECTION_INTERVAL_S_MAX = 600.0
"""What only a full collection frees waits no longer than this."""
_NEVER = 2**31 - 1


def collect_and_give_back() -> None:
    """Free what is in cycles, and give what is free back to the system."""
    gc.collect()
    give_freed_memory_back()


class Server(Protocol):
    """What can be started, describes where it listens, and can be stopped."""

    async def start(self) -> None:
        """Start and return when requests are served; leaves nothing behind when it raises."""
        ...

    def addresses(self) -> list[str]:
        """URLs for the `ready` line; valid once started."""
        ...

    async def stop(self) -> None:
        """Finish what is under way and close everything."""
        ...


def run_server(
    make: Callable[[], Server], *, then: Callable[[Server], Awaitable[bool]] | None = None
) -> None:
    """Run a server until a signal arrives.

    Args:
        make: called on the event loop.
        then: runs when the server is ready; the server stops when it returns False.
    """
    sys.setswitchinterval(_SWITCH_INTERVAL_S)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_serve(make, then))


async def _serve(
    make: Callable[[], Server], then: Callable[[Server], Awaitable[bool]] | None
) -> None:
    loop = asyncio.get_running_loop()
    stop_asked = asyncio.Event()

    on_sigterm = signal.getsignal(signal.SIGTERM)

    def on_signal() -> None:
        for number in _SIGNALS:
            loop.remove_signal_handler(number)
        signal.signal(signal.SIGTERM, on_sigterm)
        stop_asked.set()

    for number in _SIGNALS:
        loop.add_signal_handler(number, on_signal)
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        loop.add_signal_handler(signal.SIGHUP, stop_asked.set)
    server = make()
    if not await _has_started(server, stop_asked):
        return
    # What start-up made lives as long as the process: the collector need not walk it again.
    gc.collect()
    gc.freeze()
    full_collections = FullCollections()
    full_collections.start()
    say_ready(server)
    try:
        if then is None:
            await stop_asked.wait()
        else:
            await _run_until(stop_asked, server, then)
    finally:
        _log.info("stopping")
        try:
            # Without a full collection: who hands over thousands of topics has no second for each.
            await server.stop()
        finally:
            full_collections.stop()
        _log.info("stopped")


async def _has_started(server: Server, stop_asked: asyncio.Event) -> bool:
    """Start it; False if a signal came before it was ready, and nothing is left of it."""
    starting = asyncio.ensure_future(server.start())
    stop = asyncio.ensure_future(stop_asked.wait())
    try:
        await asyncio.wait({starting, stop}, return_when=asyncio.FIRST_COMPLETED)
        if not starting.done():
            _log.info("start_broken_off")
            starting.cancel()
            await asyncio.wait({starting})
    finally:
        stop.cancel()
    if starting.cancelled():
        return False
    starting.result()
    return True


async def _run_until(
    stop_asked: asyncio.Event, server: Server, then: Callable[[Server], Awaitable[bool]]
) -> None:
    """Run `then`, but not longer than until a signal; afterwards wait for one if it says so."""
    stop = asyncio.ensure_future(stop_asked.wait())
    work = asyncio.ensure_future(then(server))
    try:
        await asyncio.wait({stop, work}, return_when=asyncio.FIRST_COMPLETED)
        if work.done() and work.result():
            await stop
    finally:
        for each in (work, stop):
            each.cancel()
        await asyncio.gather(work, stop, return_exceptions=True)


def say_ready(server: Server) -> None:
    """Print the one line that scripts wait for: `ready` and the URLs."""
    sys.stdout.write(" ".join(["ready", *server.addresses()]) + "\n")
    sys.stdout.flush()


class FullCollections:
    """Full collections of Python's cycle collector on the event loop, from `start` to `stop`.

    A full collection looks at every container there is and stops all threads meanwhile: with some
    hundred thousand ledgers in a write cache that is half a second. By itself the interpreter runs
    one whenever the number of containers has grown by a quarter, in the worst moment: while much
    arrives. Nearly all garbage here is freed without the collector, and most cycles die young,
    which its short collections see to. So full ones come by the clock, and the more one takes, the
    later is the next.
    """

    def __init__(
        self,
        collect: Callable[[], object] = collect_and_give_back,
        computed_s: Callable[[], float] = time.thread_time,
    ) -> None:
        """`computed_s`: processor time of this thread. What others took of the machine meanwhile is
        no reason to let garbage lie."""
        self._collect = collect
        self._computed_s = computed_s
        self._timer: asyncio.TimerHandle | None = None
        self._thresholds = gc.get_threshold()

    def start(self) -> None:
        self._thresholds = gc.get_threshold()
        gc.set_threshold(*self._thresholds[:2], _NEVER)
        self._wait(_COLLECTION_INTERVAL_S_MIN)

    def stop(self) -> None:
        """The interpreter decides again."""
        gc.set_threshold(*self._thresholds)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _wait(self, seconds: float) -> None:
        self._timer = asyncio.get_running_loop().call_later(seconds, self._run)

    def _run(self) -> None:
        started_s = self._computed_s()
        self._collect()
        took_s = self._computed_s() - started_s
        self._wait(
            min(
                _COLLECTION_INTERVAL_S_MAX,
                max(_COLLECTION_INTERVAL_S_MIN, took_s / _COLLECTIONS_SHARE_MAX),
            )
        )
