"""Life cycle of a server process: start, `ready`, wait for SIGTERM or SIGINT, drain, end with 0.

A signal before the server is ready cancels the start. A second signal during that, or during a
drain, ends the process at once, as it would without a handler.

SIGHUP, sent when the terminal is closed, also starts a drain. Repeated ones do not end the process:
a closing terminal sends more than one. Under `nohup` SIGHUP is ignored.

While the process serves, full collections of Python's cycle collector run on a timer
(`FullCollections`).
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
"""Time in seconds after which a busy thread yields to a waiting one. The event loop waits for each
worker in turn; the interpreter's default of 5 ms is too long for it."""

_COLLECTIONS_SHARE_MAX = 1 / 4000
"""Largest share of the time for full collections. In one of a thousand moments the event loop may
be held up longer than it should; a quarter of these may be collections."""
_COLLECTION_INTERVAL_S_MIN = 60.0
_COLLECTION_INTERVAL_S_MAX = 600.0
"""Longest time, in seconds, that garbage waits for a full collection."""
_NEVER = 2**31 - 1


def collect_and_give_back() -> None:
    """Free garbage in cycles, and return free memory to the system."""
    gc.collect()
    give_freed_memory_back()


class Server(Protocol):
    """A part that can be started and stopped, and tells where it listens."""

    async def start(self) -> None:
        """Start; return when requests are served. Leave nothing behind after an error."""
        ...

    def addresses(self) -> list[str]:
        """Return the URLs for the `ready` line; valid after the start."""
        ...

    async def stop(self) -> None:
        """Finish the requests in progress and close everything."""
        ...


def run_server(
    make: Callable[[], Server], *, then: Callable[[Server], Awaitable[bool]] | None = None
) -> None:
    """Run a server until a signal arrives.

    Args:
        make: makes the server, on the event loop.
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
    # Objects made at the start live as long as the process: the collector can skip them.
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
            # Without a full collection: a handover of thousands of topics has no time for any.
            await server.stop()
        finally:
            full_collections.stop()
        _log.info("stopped")


async def _has_started(server: Server, stop_asked: asyncio.Event) -> bool:
    """Start the server. Return False if a signal came before it was ready; nothing is left of it
    then."""
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
    """Run `then` until it returns or a signal comes. If it returns True, wait for a signal."""
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
    """Print the line that scripts wait for: `ready` and the URLs."""
    sys.stdout.write(" ".join(["ready", *server.addresses()]) + "\n")
    sys.stdout.flush()


class FullCollections:
    """Full collections of Python's cycle collector on the event loop, from `start` to `stop`.

    A full collection visits every container and stops all threads meanwhile: half a second with
    some hundred thousand ledgers in a write cache. By default the interpreter runs one whenever the
    number of containers has grown by a quarter, at the worst moment: under a high load of messages.
    Nearly all garbage here is freed without the collector, and most cycles die young, which its
    short collections handle. So full collections run on a timer, and the longer one takes, the
    later the next one runs.
    """

    def __init__(
        self,
        collect: Callable[[], object] = collect_and_give_back,
        computed_s: Callable[[], float] = time.thread_time,
    ) -> None:
        """Make a stopped timer.

        `computed_s` returns the processor time of this thread. Time that other threads and
        processes take meanwhile must not delay the next collection.
        """
        self._collect = collect
        self._computed_s = computed_s
        self._timer: asyncio.TimerHandle | None = None
        self._thresholds = gc.get_threshold()

    def start(self) -> None:
        self._thresholds = gc.get_threshold()
        gc.set_threshold(*self._thresholds[:2], _NEVER)
        self._wait(_COLLECTION_INTERVAL_S_MIN)

    def stop(self) -> None:
        """Return control over collections to the interpreter."""
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
