"""A bookie whose metadata session ends while it runs: what it takes, and how it comes back."""

import asyncio
import random
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from magnetar.bookie.bookie import Bookie
from magnetar.bookie.errors import RegistrationTakenError
from magnetar.bookie.settings import BookieSettings
from magnetar.ledger.metadata.store import (
    MetadataStore,
    SessionCallback,
    SessionState,
    Watch,
)
from magnetar.ledger.metadata.url import open_store
from magnetar.ledger.registration import BookieInfo, BookieRegistry
from magnetar.ledger.system import SystemClock, SystemDisk, SystemNetwork
from magnetar.ledger.wire import Flag, Frame, Status
from tests.bookie_parts import BookieClient, add_request, packets_in, packets_of, read_request

LEDGER = 7
PATH = "/ledgers/available/b1"


class Story:
    """A bookie, a client of it, and the session of the bookie in the hands of the test."""

    def __init__(self, store: MetadataStore, bookie: Bookie, client: BookieClient) -> None:
        self.store = store
        self.bookie = bookie
        self.client = client
        self.tell: SessionCallback = lambda state: None
        self.fatal: list[BaseException] = []

    async def add(self, entry: int, flags: int = 0) -> Frame:
        return await self.client.ask(lambda i: add_request(i, LEDGER, entry, flags=flags))

    async def expire(self) -> None:
        """The session is gone, and its ephemeral nodes; there is no new one yet."""
        self.tell(SessionState.EXPIRED)
        await self.store.delete(PATH)


@pytest.fixture
async def story(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Story]:
    store = await open_store(f"embedded:{tmp_path / 'metadata.db'}")
    listeners: list[SessionCallback] = []
    subscribe = store.on_session_change

    def remember(callback: SessionCallback) -> Watch:
        listeners.append(callback)
        return subscribe(callback)

    monkeypatch.setattr(store, "on_session_change", remember)
    fatal: list[BaseException] = []
    bookie = Bookie(
        BookieSettings(
            data_directory=tmp_path / "b1", bookie_id="b1", port=0, registration_wait_s=0.1
        ),
        store,
        clock=SystemClock(),
        network=SystemNetwork(),
        disk=SystemDisk(),
        random=random.Random(),
        on_fatal=fatal.append,
    )
    await bookie.start()
    client = await BookieClient.connect(bookie.port)
    story = Story(store, bookie, client)
    (story.tell,) = listeners
    story.fatal = fatal
    yield story
    client.close()
    await bookie.stop()
    await store.close()


async def until_exists(store: MetadataStore, path: str) -> None:
    changed = asyncio.Event()
    watch = store.watch(path, lambda event: changed.set())
    async with asyncio.timeout(30):
        while await store.exists(path) is None:
            await changed.wait()
            changed.clear()
    watch.close()


async def test_a_bookie_without_a_registration_is_read_only_until_it_has_one(story: Story) -> None:
    assert (await story.add(0)).status == Status.OK
    await story.expire()
    refused = await story.add(1)
    assert refused.status == Status.READ_ONLY
    assert b"registration" in refused.body
    # A ledger may be recovered onto it, and what it has is read.
    assert (await story.add(1, Flag.RECOVERY)).status == Status.OK
    found = await story.client.ask(lambda i: read_request(i, LEDGER, 0, 0))
    assert packets_in(found) == packets_of(LEDGER, 0, 1)

    story.tell(SessionState.CONNECTED)
    await until_exists(story.store, PATH)
    # The reply to a request that comes after the registration is seen.
    async with asyncio.timeout(30):
        while (await story.add(2)).status != Status.OK:
            pass
    assert story.fatal == []


async def test_a_bookie_without_contact_goes_on(story: Story) -> None:
    story.tell(SessionState.SUSPENDED)
    assert (await story.add(0)).status == Status.OK
    story.tell(SessionState.CONNECTED)
    assert (await story.add(1)).status == Status.OK


async def test_a_bookie_whose_registration_was_taken_meanwhile_ends(story: Story) -> None:
    await story.expire()
    elsewhere = BookieInfo("b1", "elsewhere", 3181, readonly=False)
    await BookieRegistry(story.store).register(elsewhere)
    story.tell(SessionState.CONNECTED)
    await story.client.wait_closed()
    assert [type(error) for error in story.fatal] == [RegistrationTakenError]
    await story.bookie.stop()
    assert b"elsewhere" in (await story.store.get(PATH)).value


async def test_a_second_loss_during_the_registration_is_not_missed(
    story: Story, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was registered in a session that is gone by the reply does not count."""
    await story.expire()
    register = BookieRegistry.register
    losses = 0

    async def register_and_lose(self: BookieRegistry, info: BookieInfo, *, wait_s: float) -> None:
        nonlocal losses
        await register(self, info, wait_s=wait_s)
        losses += 1
        if losses == 1:
            await story.expire()
            story.tell(SessionState.CONNECTED)

    monkeypatch.setattr(BookieRegistry, "register", register_and_lose)
    story.tell(SessionState.CONNECTED)
    async with asyncio.timeout(30):
        while (await story.add(0)).status != Status.OK:
            pass
    assert losses == 2
    assert await story.store.exists(PATH) is not None
