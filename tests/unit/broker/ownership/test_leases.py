"""What a look at a lease may conclude when it changes before the answer is there."""

import asyncio
import random
from typing import cast

from magnetar.broker.balance.bundles import Bundle, BundleId
from magnetar.broker.balance.layouts import Layouts
from magnetar.broker.ownership.leases import Leases
from magnetar.broker.ownership.records import BrokerRecord, LeaseRecord
from magnetar.broker.ownership.registration import Registration
from magnetar.broker.ownership.session_guard import SessionGuard
from magnetar.ledger.metadata.store import Versioned, Watch, WatchCallback, WatchEvent
from tests.dictionary_store import DictionaryStore

BUNDLE = BundleId("public/default", Bundle(0, 0x40000000))
PATH = BUNDLE.lease_path
URL = "pulsar://localhost:6650"


class Store(DictionaryStore):
    """Its answers can be held back; whoever watches is told when a test says so."""

    def __init__(self) -> None:
        super().__init__()
        self.watching: list[WatchCallback] = []
        self.held: list[asyncio.Event] = []
        """Reads that wait before the store looks."""
        self._is_holding = False

    async def get(self, path: str) -> Versioned:
        if self._is_holding:
            self.held.append(asyncio.Event())
            await self.held[-1].wait()
        return await super().get(path)

    async def set(self, path: str, value: bytes, *, version: int) -> int:
        self.nodes[path] = value
        return version + 1

    def watch(self, path: str, callback: WatchCallback) -> Watch:
        store = self

        class Watching:
            def close(self) -> None:
                if callback in store.watching:
                    store.watching.remove(callback)

        self.watching.append(callback)
        return Watching()

    def tell(self, event: WatchEvent) -> None:
        for callback in list(self.watching):
            callback(event)

    def hold(self) -> None:
        """Hold back reads from now on."""
        self._is_holding = True

    def go_on(self) -> list[asyncio.Event]:
        """Reads from now on are answered; returns those that are not."""
        self._is_holding = False
        held, self.held = self.held, []
        return held


class Guard:
    """A term that does not end."""

    term = 1
    is_valid = True

    def holds(self, term: int) -> bool:
        return term == self.term

    def on_run_out(self, callback: object) -> None: ...


class AnyLayout:
    """Every bundle is one of its namespace's."""

    async def verified(self, namespace: str) -> list[Bundle]:
        return [BUNDLE.bundle]


class World:
    """One broker that has the lease."""

    def __init__(self) -> None:
        self.store = Store()
        self.lost: list[BundleId] = []
        self.registration = Registration(
            self.store,
            lambda: "br1",
            lambda token: BrokerRecord(native_url=URL, session_token=token, name="br1"),
            random=random.Random(1),
        )
        self.leases = Leases(
            self.store,
            self.registration,
            cast("SessionGuard", Guard()),
            cast("Layouts", AnyLayout()),
            on_lost=self.lost.append,
        )

    @classmethod
    async def made(cls) -> "World":
        world = cls()
        await world.registration.renew()
        await world.leases.take(BUNDLE)
        assert world.leases.holds(BUNDLE)
        return world

    def give_to_another(self) -> None:
        """As when an operator deletes the node, and another broker is faster."""
        record = LeaseRecord(native_url=URL, session_token="another's", broker="br2")
        self.store.nodes[PATH] = record.encode()


async def settle() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


async def test_a_lease_whose_node_is_gone_is_lost() -> None:
    world = await World.made()
    del world.store.nodes[PATH]
    world.store.tell(WatchEvent.DELETED)
    await settle()
    assert world.lost == [BUNDLE]
    assert not world.leases.holds(BUNDLE)


async def test_a_lease_that_was_given_up_while_it_was_looked_at_is_not_lost() -> None:
    """The look begins with the event of our own announcement, and ends behind our own deletion."""
    world = await World.made()
    await world.leases.announce(BUNDLE, "br2")
    world.store.hold()
    world.store.tell(WatchEvent.CHANGED)
    await settle()
    assert world.store.held, "it looks"
    giving_up = asyncio.create_task(world.leases.give_up(BUNDLE))
    await settle()
    del world.store.nodes[PATH]
    for each in world.store.go_on():
        each.set()
    await giving_up
    await settle()
    assert world.lost == []


async def test_a_lease_that_was_taken_anew_while_it_was_looked_at_is_not_lost() -> None:
    world = await World.made()
    world.store.hold()
    world.store.tell(WatchEvent.CHANGED)
    await settle()
    [look] = world.store.go_on()
    await world.leases.give_up(BUNDLE)
    await world.leases.take(BUNDLE)
    node = world.store.nodes.pop(PATH)  # what the look finds is from in between
    look.set()
    await settle()
    world.store.nodes[PATH] = node
    assert world.lost == []
    assert world.leases.holds(BUNDLE)


async def test_a_loss_that_a_lookup_meets_before_the_event_is_dealt_with_is_told() -> None:
    """A lookup is under way when the node goes, and has its answer first."""
    for take_away in (World.give_to_another, lambda world: world.store.nodes.pop(PATH)):
        world = await World.made()
        take_away(world)
        record = await world.leases.read(BUNDLE)
        assert record is None or record.broker == "br2"
        assert world.lost == [BUNDLE], "or its topics would be served on"
        world.store.tell(WatchEvent.DELETED)
        await settle()
        assert world.lost == [BUNDLE], "once"


async def test_a_lookup_from_before_the_lease_was_taken_does_not_forget_it() -> None:
    world = await World.made()
    await world.leases.give_up(BUNDLE)
    world.store.hold()
    reading = asyncio.create_task(world.leases.read(BUNDLE))
    await settle()
    [look] = world.store.go_on()
    await world.leases.take(BUNDLE)
    node = world.store.nodes.pop(PATH)  # it looked before
    look.set()
    assert await reading is None
    world.store.nodes[PATH] = node
    assert world.leases.holds(BUNDLE)
    assert world.lost == []
