"""What a look at a lease may conclude when it changes before the answer is there, and what becomes
of a write whose outcome nobody knows."""

import asyncio
import random
from typing import cast

import pytest

from magnetar.broker.base.errors import BrokerMetadataError
from magnetar.broker.cluster.balance.bundles import Bundle, BundleId
from magnetar.broker.cluster.balance.layouts import Layouts
from magnetar.broker.cluster.ownership.leases import Leases
from magnetar.broker.cluster.ownership.records import BrokerRecord, LeaseRecord
from magnetar.broker.cluster.ownership.registration import Registration
from magnetar.broker.cluster.ownership.session_guard import SessionGuard
from magnetar.broker.policies.model import decode
from magnetar.ledger.errors import (
    BadVersionError,
    MetadataUnavailableError,
    NoNodeError,
    UnknownOutcomeError,
)
from magnetar.ledger.metadata.store import Versioned, Watch, WatchCallback, WatchEvent
from magnetar.ledger.system import SystemClock
from tests.dictionary_store import DictionaryStore
from tests.waiting import settle

BUNDLE = BundleId("public/default", Bundle(0, 0x40000000))
PATH = BUNDLE.lease_path
URL = "pulsar://localhost:6650"


class Store(DictionaryStore):
    """A store whose answers can be held back or lost; watchers are told when a test says so."""

    def __init__(self) -> None:
        super().__init__()
        self.versions: dict[str, int] = {}
        self.lost_replies: list[str] = []
        """Operations that are done next, and whose replies are lost."""
        self.lost_requests: list[str] = []
        """Operations that are not done, which nobody hears."""
        self.refused: list[str] = []
        """Operations that are not done."""
        self.watching: list[WatchCallback] = []
        self.held: list[asyncio.Event] = []
        """Reads that wait before the store looks."""
        self._is_holding = False

    async def get(self, path: str) -> Versioned:
        if self._is_holding:
            self.held.append(asyncio.Event())
            await self.held[-1].wait()
        self._begin("get")
        found = await super().get(path)
        return Versioned(found.value, self.versions.get(path, 0))

    async def create(
        self, path: str, value: bytes = b"", *, ephemeral: bool = False, sequential: bool = False
    ) -> str:
        self._begin("create")
        await super().create(path, value)
        self.versions[path] = 0
        self._end("create")
        return path

    async def set(self, path: str, value: bytes, *, version: int) -> int:
        self._begin("set")
        self._compare(path, version)
        self.nodes[path] = value
        self.versions[path] = version + 1
        self._end("set")
        return version + 1

    async def delete(self, path: str, *, version: int | None = None) -> None:
        self._begin("delete")
        self._compare(path, version)
        await super().delete(path)
        self._end("delete")

    def _compare(self, path: str, version: int | None) -> None:
        if path not in self.nodes:
            raise NoNodeError(path)
        if version not in (None, self.versions.get(path, 0)):
            raise BadVersionError(path)

    def _begin(self, kind: str) -> None:
        if kind in self.refused:
            self.refused.remove(kind)
            raise MetadataUnavailableError(kind)
        if kind in self.lost_requests:
            self.lost_requests.remove(kind)
            raise UnknownOutcomeError(kind)

    def _end(self, kind: str) -> None:
        if kind in self.lost_replies:
            self.lost_replies.remove(kind)
            raise UnknownOutcomeError(kind)

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
    """A term that ends when a test says so."""

    term = 1
    is_valid = True

    def holds(self, term: int) -> bool:
        return term == self.term

    def on_run_out(self, callback: object) -> None: ...


class OneLayout:
    """What bundles every namespace has."""

    def __init__(self) -> None:
        self.bundles = [BUNDLE.bundle]

    async def verified(self, namespace: str) -> list[Bundle]:
        return self.bundles


class World:
    """One broker that has the lease."""

    def __init__(self) -> None:
        self.store = Store()
        self.lost: list[BundleId] = []
        self.guard = Guard()
        self.layout = OneLayout()
        self.registration = Registration(
            self.store,
            lambda: "br1",
            lambda token: BrokerRecord(native_url=URL, session_token=token, name="br1"),
            random=random.Random(1),
        )
        self.leases = Leases(
            self.store,
            self.registration,
            cast("SessionGuard", self.guard),
            cast("Layouts", self.layout),
            on_lost=self.lost.append,
            retry_s=0.001,
            clock=SystemClock(),
        )

    @classmethod
    async def made(cls) -> "World":
        world = cls()
        await world.registration.renew()
        await world.leases.take(BUNDLE)
        assert world.leases.holds(BUNDLE)
        return world

    @property
    def destination(self) -> str:
        """What the lease in the store names."""
        return decode(LeaseRecord, PATH, self.store.nodes[PATH]).destination

    def give_to_another(self) -> None:
        """As when an operator deletes the node, and another broker is faster."""
        record = LeaseRecord(native_url=URL, session_token="another's", broker="br2")
        self.store.nodes[PATH] = record.encode()


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


async def test_an_announcement_whose_reply_is_lost_was_made() -> None:
    world = await World.made()
    world.store.lost_replies = ["set"]
    await world.leases.announce(BUNDLE, "br2")
    assert world.destination == "br2"
    assert world.leases.holds(BUNDLE)
    await world.leases.announce(BUNDLE, "br3")
    assert world.destination == "br3", "its version is known"


async def test_an_announcement_that_never_reached_the_store_is_made_again() -> None:
    world = await World.made()
    world.store.lost_requests = ["set"]
    await world.leases.announce(BUNDLE, "br2")
    assert world.destination == "br2"


async def test_an_announcement_finds_out_about_a_change_that_it_did_not_hear_of() -> None:
    world = await World.made()
    world.store.versions[PATH] += 1
    await world.leases.announce(BUNDLE, "br2")
    assert world.destination == "br2"


async def test_an_announcement_is_looked_after_until_the_store_answers() -> None:
    world = await World.made()
    world.store.lost_replies = ["set"]
    world.store.refused = ["get"] * 3
    await world.leases.announce(BUNDLE, "br2")
    assert world.destination == "br2"
    assert world.leases.holds(BUNDLE)


async def test_an_announcement_that_nobody_knows_of_at_the_end_of_a_term_counts_as_made() -> None:
    """The announcement is carried out, since others may see it."""
    world = await World.made()
    world.store.lost_replies = ["set"]
    world.store.refused = ["get"] * 1000
    announcing = asyncio.create_task(world.leases.announce(BUNDLE, "br2"))
    await asyncio.sleep(0.01)
    assert not announcing.done()
    world.guard.term += 1
    await asyncio.wait_for(announcing, 1)


async def test_an_announcement_that_is_refused_changes_nothing() -> None:
    world = await World.made()
    for refused in (["set"], ["set", "get"]):
        world.store.refused = refused
        with pytest.raises(BrokerMetadataError, match="not changed"):
            await world.leases.announce(BUNDLE, "br2")
        assert world.destination == ""
        assert world.leases.holds(BUNDLE)


async def test_nothing_is_announced_in_a_lease_that_is_another_brokers_now() -> None:
    for lost in ([], ["set"]):
        world = await World.made()
        world.give_to_another()
        world.store.versions[PATH] = 1
        world.store.lost_requests = lost
        with pytest.raises(BrokerMetadataError, match="does not own"):
            await world.leases.announce(BUNDLE, "br3")
        assert world.destination == ""
        assert world.lost == [BUNDLE]


async def test_a_lease_that_could_not_be_deleted_is_not_given_up() -> None:
    world = await World.made()
    world.store.lost_requests = ["delete"] * 100
    with pytest.raises(BrokerMetadataError):
        await world.leases.give_up(BUNDLE)
    assert PATH in world.store.nodes


async def test_a_lease_whose_reply_is_lost_is_not_kept_either_if_the_bundle_was_split() -> None:
    world = World()
    await world.registration.renew()
    world.layout.bundles = []
    world.store.lost_replies = ["create"]
    with pytest.raises(BrokerMetadataError, match="split"):
        await world.leases.take(BUNDLE)
    assert PATH not in world.store.nodes
    assert not world.leases.holds(BUNDLE)


async def test_a_lease_that_was_taken_is_kept_though_the_reply_is_lost() -> None:
    world = World()
    await world.registration.renew()
    world.store.lost_replies = ["create"]
    assert (await world.leases.take(BUNDLE)).broker == "br1"
    assert world.leases.holds(BUNDLE)
