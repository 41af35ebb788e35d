"""A bookie's machine whose disks are as full as a test says, and its registration."""

import asyncio
import errno
import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

from magnetar.ledger.metadata.store import MetadataStore
from magnetar.ledger.registration import BookieRegistry
from magnetar.ledger.system import SystemDisk
from tests.integration.bookie.bookie_machine import BookieMachine, store_in

LOG_BYTES = 1 << 20
TOTAL = 1_000_000_000


class SizedDisk(SystemDisk):
    """The system's files on file systems as full as a test says."""

    def __init__(self) -> None:
        self.used_percent: float = 10
        self.ill: str | None = None
        """A directory that cannot be looked at."""

    def free_bytes(self, path: str) -> int:
        if self.ill is not None and path.startswith(self.ill):
            raise OSError(errno.EIO, os.strerror(errno.EIO), path)
        return round(TOTAL * (100 - self.used_percent) / 100)

    def total_bytes(self, path: str) -> int:
        return TOTAL


class SizedMachine(BookieMachine):
    """Bookies look at their disks when they are told to, and never by the clock."""

    def __init__(self, store: MetadataStore, place: Path) -> None:
        super().__init__(store, place)
        self.disk = self.sized = SizedDisk()
        self.options = {"disk_check_interval_s": 3600, "entry_log_bytes_max": LOG_BYTES}
        self.registry = BookieRegistry(store)
        self._changed = asyncio.Event()
        self.registry.on_change(self._changed.set)

    async def until(self, is_so: Callable[[], bool]) -> None:
        """Wait for the registration to be so."""
        async with asyncio.timeout(30):
            while not is_so():
                self._changed.clear()
                await self._changed.wait()

    async def until_registered(self, *, readonly: bool) -> None:
        def is_so() -> bool:
            info = self.registry.resolve("b1")
            return info is not None and info.readonly is readonly

        await self.until(is_so)


@asynccontextmanager
async def sized_machine(place: Path) -> AsyncIterator[SizedMachine]:
    async with store_in(place) as store:
        machine = SizedMachine(store, place)
        await machine.registry.start()
        yield machine
        await machine.registry.close()
