"""A few real bookies in this process, on one embedded metadata store, for the tests beside it."""

import asyncio
import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

from magnetar.bookie.bookie import Bookie
from magnetar.bookie.settings import BookieSettings
from magnetar.ledger.client import LedgerClient
from magnetar.ledger.metadata.store import MetadataStore
from magnetar.ledger.metadata.url import open_store
from magnetar.ledger.ports import Network
from magnetar.ledger.settings import LedgerSettings
from magnetar.ledger.system import SystemClock, SystemDisk, SystemNetwork

CLIENT_SETTINGS = LedgerSettings(request_timeout_s=30, reconnect_delay_s=0.05)
"""All bookies share a disk, and one sync of it may take seconds: no request expires by that."""


def no_fatal_errors(error: BaseException) -> None:
    raise AssertionError(f"the bookie gave up: {error!r}")


class Cluster:
    """Real bookies on real sockets and files."""

    def __init__(self, store: MetadataStore, directory: Path) -> None:
        self.store = store
        self._directory = directory
        self.bookies: dict[str, Bookie] = {}
        self._starts = 0

    async def start_bookie(self, name: str, settings: BookieSettings | None = None) -> Bookie:
        if settings is None:
            settings = self.settings_of(name)
        self._starts += 1
        bookie = Bookie(
            settings,
            self.store,
            clock=SystemClock(),
            network=SystemNetwork(),
            disk=SystemDisk(),
            random=random.Random(f"{name}, start {self._starts}"),
            on_fatal=no_fatal_errors,
        )
        await bookie.start()
        self.bookies[name] = bookie
        return bookie

    def settings_of(self, name: str) -> BookieSettings:
        """What a bookie is started with if nothing else is said."""
        return BookieSettings(
            bookie_id=name, data_directory=self._directory / name, host="127.0.0.1", port=0
        )

    async def stop_bookie(self, name: str) -> None:
        await self.bookies.pop(name).stop()

    async def wait_known(self, client: LedgerClient, *names: str) -> None:
        """Wait until the client knows where these bookies listen now."""
        changed = asyncio.Event()
        client.registry.on_change(changed.set)

        def is_known(name: str) -> bool:
            info = client.registry.resolve(name)
            return info is not None and info.port == self.bookies[name].port

        while not all(map(is_known, names)):
            changed.clear()
            await changed.wait()

    @asynccontextmanager
    async def client(
        self, network: Network | None = None, settings: LedgerSettings = CLIENT_SETTINGS
    ) -> AsyncIterator[LedgerClient]:
        client = LedgerClient(
            self.store,
            network=network or SystemNetwork(),
            clock=SystemClock(),
            random=random.Random(2),
            settings=settings,
        )
        await client.start()
        try:
            yield client
        finally:
            await client.close()


@asynccontextmanager
async def cluster_of(
    bookies: int,
    directory: Path,
    wrap: Callable[[MetadataStore], MetadataStore] = lambda store: store,
) -> AsyncIterator[Cluster]:
    store = await open_store(f"embedded:{directory / 'metadata.db'}")
    cluster = Cluster(wrap(store), directory)
    try:
        for number in range(1, bookies + 1):
            await cluster.start_bookie(f"b{number}")
        yield cluster
    finally:
        for name in list(cluster.bookies):
            await cluster.stop_bookie(name)
        await store.close()
