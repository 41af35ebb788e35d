"""What integration tests of the bookie share: a place where bookies come and go, on real files and
sockets, and what a client asks of them.
"""

import os
import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from magnetar.bookie.bookie import Bookie
from magnetar.bookie.journaling.journal_format import file_ids, file_name
from magnetar.bookie.settings import BookieSettings
from magnetar.ledger.metadata.store import MetadataStore
from magnetar.ledger.metadata.url import open_store
from magnetar.ledger.ports import Worker
from magnetar.ledger.system import SystemClock, SystemDisk, SystemNetwork, ThreadWorker
from magnetar.ledger.wire import Frame
from tests.bookie_parts import KEY, BookieClient, add_request, read_lac_request, read_request


class BookieMachine:
    """A metadata store and a place for directories; bookies named b1 come and go on them."""

    def __init__(self, store: MetadataStore, place: Path) -> None:
        self.store = store
        self.place = place
        self.disk = SystemDisk()
        self.worker: Callable[[str], Worker] = ThreadWorker
        self.options: dict[str, object] = {}
        """Settings of all its bookies."""
        self.fatal: list[BaseException] = []

    @property
    def data(self) -> Path:
        return self.place / "b1"

    @property
    def journal(self) -> Path:
        return self.data / "journal"

    def journal_files(self) -> list[Path]:
        """Spares are not among them."""
        return journal_files_in(self.journal)

    def make(self, **options: object) -> Bookie:
        values: dict[str, object] = {
            "bookie_id": "b1",
            "data_directory": self.data,
            "port": 0,
            "registration_wait_s": 0.2,
            **self.options,
            **options,
        }
        return Bookie(
            BookieSettings.model_validate(values),
            self.store,
            clock=SystemClock(),
            network=SystemNetwork(),
            disk=self.disk,
            random=random.Random(),
            on_fatal=self.fatal.append,
            worker=self.worker,
        )

    @asynccontextmanager
    async def bookie(self, **options: object) -> AsyncIterator[tuple[Bookie, BookieClient]]:
        bookie = self.make(**options)
        await bookie.start()
        client = await BookieClient.connect(bookie.port)
        try:
            yield bookie, client
        finally:
            client.close()
            await bookie.stop()

    async def refusal(self, kind: type[Exception], **options: object) -> str:
        """Start, expect the error, and check that nothing is left behind; returns its text."""
        bookie = self.make(**options)
        with pytest.raises(kind) as raised:
            await bookie.start()
        await bookie.stop()
        text = str(raised.value)
        assert "\n" not in text
        return text


@asynccontextmanager
async def store_in(place: Path) -> AsyncIterator[MetadataStore]:
    """The embedded metadata store of a machine."""
    store = await open_store(f"embedded:{place / 'metadata.db'}")
    try:
        yield store
    finally:
        await store.close()


def journal_files_in(directory: Path) -> list[Path]:
    """Spares are not among them."""
    return [directory / file_name(file_id) for file_id in file_ids(os.listdir(directory))]


async def add(
    client: BookieClient, ledger: int, first: int, count: int = 1, *, flags: int = 0
) -> Frame:
    return await client.ask(lambda i: add_request(i, ledger, first, count, flags=flags))


async def read(client: BookieClient, ledger: int, first: int, last: int) -> Frame:
    return await client.ask(lambda i: read_request(i, ledger, first, last))


async def fence(client: BookieClient, ledger: int) -> Frame:
    return await client.ask(lambda i: read_lac_request(i, ledger, fence_key=KEY))
