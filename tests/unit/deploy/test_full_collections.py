"""Full collections of a server process: seldom, and the rarer the longer they take."""

import asyncio
import gc
import platform
import subprocess
import sys
from collections.abc import Callable, Iterator

import pytest

from magnetar.deploy.process import FullCollections, run_server
from tests.processes import ROOT

_BLOCK_BYTES = 4000
"""Below the size from which glibc maps each block by itself."""
_BLOCKS = 10_000


class Timers:
    """Instead of the loop's: a test strikes them."""

    def __init__(self) -> None:
        self.delay_s = 0.0
        self._call: Callable[[], None] = lambda: None

    def call_later(self, delay_s: float, call: Callable[[], None]) -> asyncio.TimerHandle:
        self.delay_s, self._call = delay_s, call
        return asyncio.TimerHandle(0.0, call, (), asyncio.get_running_loop())

    def strike(self) -> None:
        self._call()


@pytest.fixture
def thresholds() -> Iterator[tuple[int, int, int]]:
    before = gc.get_threshold()
    yield before
    gc.set_threshold(*before)


async def test_full_collections_take_a_bounded_share_of_the_time(
    monkeypatch: pytest.MonkeyPatch, thresholds: tuple[int, int, int]
) -> None:
    timers = Timers()
    monkeypatch.setattr(asyncio.get_running_loop(), "call_later", timers.call_later)
    takes_s = computed_s = 0.0

    def collect() -> None:
        nonlocal computed_s
        computed_s += takes_s

    collections = FullCollections(collect, lambda: computed_s)
    collections.start()
    assert timers.delay_s == 60
    timers.strike()
    assert timers.delay_s == 60
    takes_s = 0.1
    timers.strike()
    assert timers.delay_s == pytest.approx(400)
    takes_s = 0.5
    timers.strike()
    assert timers.delay_s == 600, "what only they free does not wait for ever"
    collections.stop()


async def test_the_interpreter_makes_no_full_collection_by_itself_in_between(
    thresholds: tuple[int, int, int],
) -> None:
    collections = FullCollections(lambda: None)
    collections.start()
    before = gc.get_stats()[2]["collections"]
    kept: list[list[int]] = [[] for _ in range(300_000)]
    assert gc.get_stats()[2]["collections"] == before
    assert gc.get_threshold()[:2] == thresholds[:2], "cycles that die young are found as before"
    collections.stop()
    assert gc.get_threshold() == thresholds
    assert len(kept) == 300_000


_FREED_BY_A_THREAD = f"""
import ctypes, os, threading
from magnetar.deploy.process import collect_and_give_back
from tests.processes import resident_bytes_of

libc = ctypes.CDLL("libc.so.6")
libc.malloc.restype, libc.malloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
libc.free.argtypes = [ctypes.c_void_p]
sizes = []

def note():
    sizes.append(resident_bytes_of(os.getpid()))

def fill_and_free_all_but_the_last():
    note()
    blocks = [libc.malloc({_BLOCK_BYTES}) for _ in range({_BLOCKS})]
    for block in blocks:
        ctypes.memset(block, 1, {_BLOCK_BYTES})
    note()
    blocks.pop()
    for block in blocks:
        libc.free(block)

thread = threading.Thread(target=fill_and_free_all_but_the_last)
thread.start()
thread.join()
note()
collect_and_give_back()
note()
print(*sizes)
"""


def test_what_a_thread_has_freed_goes_back_to_the_system() -> None:
    """In a process of its own: in one that has run many tests there is much to use again."""
    if sys.platform != "linux" or platform.libc_ver()[0] != "glibc":
        pytest.skip("only glibc holds free pages of a thread's heap")
    ran = subprocess.run(
        [sys.executable, "-c", _FREED_BY_A_THREAD],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    before, peak, freed, given_back = map(int, ran.stdout.split())
    filled = _BLOCK_BYTES * _BLOCKS
    assert peak - before > 0.9 * filled
    assert freed > peak - filled / 2, "the C library keeps it by itself"
    assert given_back < peak - filled / 2


class Server:
    """Notes how the collector stands while it stops."""

    def __init__(self) -> None:
        self.thresholds_at_stop = (0, 0, 0)

    async def start(self) -> None:
        pass

    def addresses(self) -> list[str]:
        return []

    async def stop(self) -> None:
        self.thresholds_at_stop = gc.get_threshold()


def test_a_server_hands_over_what_it_has_without_full_collections(
    thresholds: tuple[int, int, int],
) -> None:
    server = Server()

    async def stop_at_once(_: object) -> bool:
        return False

    interval_s = sys.getswitchinterval()
    try:
        run_server(lambda: server, then=stop_at_once)
    finally:
        sys.setswitchinterval(interval_s)
        gc.unfreeze()
        # What was collected is set aside again, for the tests that this process runs next.
        gc.collect()
        gc.freeze()
    assert server.thresholds_at_stop[2] > 1_000_000
    assert gc.get_threshold() == thresholds
