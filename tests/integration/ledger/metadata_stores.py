"""Handles on one metadata store, in this process and in others, and what a watch has seen.

As a program, `python -m tests.integration.ledger.metadata_stores URL PATH`, it opens a handle,
creates an ephemeral node and says so; then it prints each state of its session until it is killed.
"""

import asyncio
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Self

from magnetar.ledger.metadata import MetadataSettings, MetadataStore, WatchEvent, open_store
from magnetar.ledger.metadata.store import SessionState
from tests.processes import python_command, start

SETTINGS = MetadataSettings(
    session_timeout_ms=4000, operation_timeout_s=20, embedded_poll_interval_ms=10
)
"""A session ends soon enough for who waits for that."""
LONG_SESSION = SETTINGS.model_copy(update={"session_timeout_ms": 30_000})
"""A client leaves a ZooKeeper server that was silent for a third of the session; one that waits for
its disk is silent for seconds."""
WAIT_S = 60.0
"""Nothing that a test waits for takes this long, unless it never comes."""


class Stores:
    """Opens handles on one store; closes them all at the end."""

    def __init__(self, url: str) -> None:
        self.url = url
        # A handle on an embedded store looks for dead sessions three times in one of its own.
        self.settings = LONG_SESSION if url.startswith("zk:") else SETTINGS
        self._open: list[MetadataStore] = []

    async def open(self, settings: MetadataSettings | None = None) -> MetadataStore:
        store = await open_store(self.url, settings=settings or self.settings)
        self._open.append(store)
        return store

    async def close(self) -> None:
        for store in self._open:
            await store.close()


class Events:
    """What a watch was told; waits for what is to come."""

    def __init__(self) -> None:
        self.seen: list[WatchEvent] = []
        self._arrived = asyncio.Event()

    def __call__(self, event: WatchEvent) -> None:
        self.seen.append(event)
        self._arrived.set()

    async def wait_for(self, event: WatchEvent) -> None:
        """Wait until the event was seen; forgets everything up to it."""
        async with asyncio.timeout(WAIT_S):
            while event not in self.seen:
                self._arrived.clear()
                await self._arrived.wait()
        del self.seen[: self.seen.index(event) + 1]


async def wait_deleted(store: MetadataStore, path: str) -> None:
    """Wait until there is no node, by watching it."""
    events = Events()
    watch = store.watch(path, events)
    if await store.exists(path) is not None:
        await events.wait_for(WatchEvent.DELETED)
    watch.close()


class OtherProcess:
    """A program that says lines."""

    def __init__(self, module: str, *arguments: str) -> None:
        self._process, self._output = start(python_command(module, *arguments))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()
        self._output.close()

    def read_line(self) -> str:
        """Without its end; empty: the program has ended."""
        return self._output.readline().strip()

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()

    def pause(self) -> None:
        self._process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        self._process.send_signal(signal.SIGCONT)


@contextmanager
def owner_process(url: str, path: str) -> Iterator[OtherProcess]:
    """A process that holds an ephemeral node at the path."""
    with OtherProcess("tests.integration.ledger.metadata_stores", url, path) as owner:
        assert owner.read_line() == "owner"
        yield owner


async def _own(url: str, path: str) -> None:
    store = await open_store(url, settings=SETTINGS)
    states: asyncio.Queue[SessionState] = asyncio.Queue()
    store.on_session_change(states.put_nowait)
    await store.create(path, b"owner", ephemeral=True)
    _say("owner")
    while True:
        _say((await states.get()).value)


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    import structlog

    structlog.configure(logger_factory=structlog.WriteLoggerFactory(sys.stderr))
    asyncio.run(_own(sys.argv[1], sys.argv[2]))
