"""Brokers that see each other through a real metadata store, and the one of them that chooses."""

import asyncio
import random
from collections.abc import Callable

import pytest

from magnetar.broker.base.errors import BrokerMetadataError
from magnetar.broker.base.settings.broker import BrokerSettings
from magnetar.broker.cluster.balance.brokers import Brokers
from magnetar.broker.cluster.balance.bundles import BundleId, Layout
from magnetar.broker.cluster.balance.layouts import Layouts, layout_path
from magnetar.broker.cluster.balance.leader import LeaderBroker
from magnetar.broker.cluster.balance.load_report import BundleLoad, LoadReport
from magnetar.broker.cluster.balance.shedder import Shedder
from magnetar.broker.cluster.ownership.records import BrokerRecord, broker_path, lease_of
from magnetar.ledger.errors import MetadataUnavailableError
from magnetar.ledger.metadata import MetadataStore, WatchEvent
from magnetar.ledger.metadata.store import Versioned
from magnetar.ledger.ports import Clock
from magnetar.ledger.system import SystemClock
from tests.integration.ledger.metadata_stores import WAIT_S, Events, Stores

BUNDLES = [BundleId("public/default", bundle) for bundle in Layout.even(8).bundles]


def record(
    name: str, *bundles: BundleId, topics: int = 100, draining: bool = False
) -> BrokerRecord:
    report = LoadReport(
        topics=topics * len(bundles),
        bundles={str(bundle): BundleLoad(topics=topics) for bundle in bundles},
    )
    return BrokerRecord(
        name=name,
        native_url=f"pulsar://{name}:6650",
        http_url=f"http://{name}:8080",
        session_token=f"token-of-{name}",
        draining=draining,
        load=report.model_dump(mode="json"),
    )


async def register(store: MetadataStore, value: BrokerRecord) -> None:
    """As the broker itself does it, or its next report."""
    path = broker_path(value.name)
    version = await store.exists(path)
    if version is None:
        await store.create(path, value.encode(), ephemeral=True)
    else:
        await store.set(path, value.encode(), version=version)


async def wait_until(brokers: Brokers, holds: Callable[[], bool]) -> None:
    changed = asyncio.Event()
    brokers.on_change(changed.set)
    async with asyncio.timeout(WAIT_S):
        while not holds():
            changed.clear()
            await changed.wait()


class LaterClock(SystemClock):
    """Real, and moved forward by the test."""

    def __init__(self) -> None:
        self.later_s = 0.0

    def monotonic_s(self) -> float:
        return super().monotonic_s() + self.later_s


def leader_of(
    store: MetadataStore, brokers: Brokers, name: str, *, clock: Clock | None = None
) -> LeaderBroker:
    return LeaderBroker(
        store,
        brokers,
        name,
        settings=BrokerSettings(),
        clock=clock or SystemClock(),
        random=random.Random(name),
    )


async def test_the_view_follows_brokers_that_come_report_and_go(stores: Stores) -> None:
    store, joining = await stores.open(), await stores.open()
    brokers = Brokers(store)
    await brokers.start()
    assert brokers.all() == {}
    await register(joining, record("b1"))
    await wait_until(brokers, lambda: "b1" in brokers.all())
    await register(joining, record("b1", BUNDLES[0]))
    await wait_until(brokers, lambda: bool((brokers.report_of("b1") or LoadReport()).bundles))
    await joining.close()
    await wait_until(brokers, lambda: not brokers.all())
    assert brokers.report_of("b1") is None
    await brokers.close()


async def test_a_broker_that_comes_back_under_its_name_is_read_anew(stores: Stores) -> None:
    store, joining = await stores.open(), await stores.open()
    brokers = Brokers(store)
    await brokers.start()
    for round_ in range(5):
        value = record("b1").model_copy(update={"session_token": f"session-{round_}"})
        await joining.create(broker_path("b1"), value.encode(), ephemeral=True)
        await wait_until(
            brokers,
            lambda value=value: brokers.get("b1") == value,  # type: ignore[misc]
        )
        await joining.delete(broker_path("b1"))
    await brokers.close()


async def test_a_registration_that_cannot_be_read_is_left_out_and_left_alone(
    store: MetadataStore,
) -> None:
    await store.create(broker_path("new"), b'{"format": 9}', ephemeral=True)
    await register(store, record("b1"))
    odd = record("b2").model_copy(update={"load": {"topics": "many"}})
    await register(store, odd)
    brokers = Brokers(store)
    await brokers.start()
    assert set(brokers.all()) == {"b1", "b2"}
    assert brokers.report_of("b2") is None
    assert (await store.get(broker_path("new"))).value == b'{"format": 9}'
    await brokers.close()


async def test_a_broker_that_is_gone_gets_nothing_though_others_could_not_be_read_at_first(
    stores: Stores, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was read before a read failed is told, too, though nothing else changes after that."""
    store, dying, living = [await stores.open() for _ in range(3)]
    await register(dying, record("b1"))
    await register(living, record("b2", BUNDLES[0]))
    brokers = Brokers(store)
    await brokers.start()
    leader = leader_of(store, brokers, "b2")
    await leader.start()
    assert leader.choose(BUNDLES[7]) == "b1"  # which leads to the same answer while b1 is there
    read, has_failed = store.get, asyncio.Event()

    async def fails_once(path: str) -> Versioned:
        if path == broker_path("b2") and not has_failed.is_set():
            has_failed.set()
            raise MetadataUnavailableError("no answer")
        return await read(path)

    monkeypatch.setattr(store, "get", fails_once)
    read_children, both_changed = store.children, asyncio.Event()

    async def listed_when_both_have_changed(path: str) -> list[str]:
        await both_changed.wait()
        return await read_children(path)

    monkeypatch.setattr(store, "children", listed_when_both_have_changed)
    await dying.close()
    events = Events()
    watch = store.watch(broker_path("b2"), events)
    await register(living, record("b2", BUNDLES[0]))
    await events.wait_for(WatchEvent.CHANGED)
    watch.close()
    both_changed.set()
    await wait_until(brokers, lambda: leader.choose(BUNDLES[7]) == "b2")
    await leader.close()
    await brokers.close()


async def test_one_leads_and_its_choices_count_each_other(stores: Stores) -> None:
    store = await stores.open()
    for name in ("b1", "b2"):
        await register(store, record(name))
    brokers = Brokers(store)
    await brokers.start()
    candidates = [leader_of(store, brokers, name) for name in ("b1", "b2")]
    for candidate in candidates:
        await candidate.start()
    assert [candidate.is_leader for candidate in candidates] == [True, False]
    leading = candidates[0].leader()
    assert leading is not None
    assert leading.name == "b1"
    chosen = [candidates[0].choose(bundle) for bundle in BUNDLES]
    assert sorted(filter(None, chosen)) == ["b1"] * 4 + ["b2"] * 4
    assert [candidates[0].choose(bundle) for bundle in BUNDLES] == chosen
    await candidates[0].close()
    async with asyncio.timeout(WAIT_S):
        changed = asyncio.Event()
        candidates[1].on_change(changed.set)
        while not candidates[1].is_leader:
            changed.clear()
            await changed.wait()
    await candidates[1].close()
    await brokers.close()


async def test_a_draining_broker_gets_nothing(store: MetadataStore) -> None:
    await register(store, record("b1", draining=True))
    await register(store, record("b2", *BUNDLES[:4]))
    brokers = Brokers(store)
    await brokers.start()
    leader = leader_of(store, brokers, "b2")
    await leader.start()
    assert leader.choose(BUNDLES[7]) == "b2"
    assert leader.choose(BUNDLES[6], excluding=["b2"]) is None
    await leader.close()
    await brokers.close()


class RecordedOrders:
    """Orders that are written down; while `is_refusing` they fail."""

    def __init__(self) -> None:
        self.moves: list[tuple[str, BundleId, str]] = []
        self.splits: list[BundleId] = []
        self.is_refusing = False
        self.told = asyncio.Event()

    async def unload(self, owner: BrokerRecord, bundle: BundleId, destination: str) -> None:
        self.moves.append((owner.name, bundle, destination))
        if self.is_refusing:
            raise BrokerMetadataError("not now")
        self.told.set()

    async def split(self, owner: BrokerRecord, bundle: BundleId) -> None:
        self.splits.append(bundle)


class Shedding:
    """A leader that sheds, with `b1` owning everything and `b2` nothing."""

    def __init__(self, store: MetadataStore, settings: BrokerSettings | None = None) -> None:
        self.store = store
        self.brokers = Brokers(store)
        self.clock = LaterClock()
        self.leader = leader_of(store, self.brokers, "b1", clock=self.clock)
        self.orders = RecordedOrders()
        self.layouts = Layouts(store, bundles_default=8, bundles_max=128)
        self.shedder = Shedder(
            store,
            self.brokers,
            self.layouts,
            self.leader,
            self.orders,
            settings=settings or BrokerSettings(),
            clock=self.clock,
        )

    async def start(self, *owned: BundleId, leases: int, topics: int = 100) -> None:
        owner = record("b1", *owned, topics=topics)
        await register(self.store, owner)
        await register(self.store, record("b2"))
        for bundle in owned[:leases]:
            await self.store.create(bundle.lease_path, lease_of(owner).encode(), ephemeral=True)
        await self.brokers.start()
        await self.leader.start()

    async def close(self) -> None:
        await self.shedder.close()
        await self.leader.close()
        await self.brokers.close()
        self.layouts.close()


async def test_a_look_moves_a_few_bundles_whose_leases_are_where_the_report_says(
    store: MetadataStore,
) -> None:
    shedding = Shedding(store)
    await shedding.start(*BUNDLES, leases=8)
    assert await shedding.shedder.look() == 4
    assert {(source, to) for source, _, to in shedding.orders.moves} == {("b1", "b2")}
    # Nobody has reported since: what was ordered is on its way, and nothing more is ordered.
    assert await shedding.shedder.look() == 0
    await shedding.close()


async def test_a_bundle_whose_lease_is_elsewhere_is_not_moved(store: MetadataStore) -> None:
    """RULE 11.1: the report is old, the lease is not."""
    shedding = Shedding(store)
    await shedding.start(*BUNDLES, leases=0)
    for bundle in BUNDLES[:4]:
        lease = lease_of(record("b2")).encode()
        await store.create(bundle.lease_path, lease, ephemeral=True)
    for bundle in BUNDLES[4:6]:  # being handed over by somebody's order
        lease = lease_of(record("b1"), destination="b2").encode()
        await store.create(bundle.lease_path, lease, ephemeral=True)
    assert await shedding.shedder.look() == 0
    assert shedding.orders.moves == []
    await shedding.close()


async def test_records_that_cannot_be_read_keep_no_other_bundle_from_its_move(
    store: MetadataStore,
) -> None:
    shedding = Shedding(store)
    odd = BundleId("public/odd", BUNDLES[0].bundle)
    await store.create(layout_path("public/odd"), b'{"format": 9}')
    await shedding.start(odd, *BUNDLES[:3], leases=4)
    await store.set(BUNDLES[0].lease_path, b'{"format": 9}', version=0)
    assert await shedding.shedder.look() == 1
    await shedding.close()


async def test_a_move_that_failed_may_be_tried_again_only_after_a_while(
    store: MetadataStore,
) -> None:
    shedding = Shedding(store)
    shedding.orders.is_refusing = True
    await shedding.start(*BUNDLES[:4], leases=4)
    assert await shedding.shedder.look() == 0
    assert shedding.shedder.failed_moves == 2
    shedding.orders.is_refusing = False
    failed = {bundle for _, bundle, _ in shedding.orders.moves}
    assert await shedding.shedder.look() == 0, "they may be on their way"
    # Nobody has asked for an owner since, and no report has shown that they have moved.
    shedding.clock.later_s = BrokerSettings().placing_remembered_ms / 1000
    assert await shedding.shedder.look() == 2
    assert {bundle for _, bundle, _ in shedding.orders.moves[2:]} == failed
    await shedding.close()


async def test_a_bundle_that_is_too_large_to_be_moved_is_split_and_not_moved(
    store: MetadataStore,
) -> None:
    shedding = Shedding(store)
    await shedding.start(BUNDLES[0], leases=1, topics=900)
    assert await shedding.shedder.look() == 0
    assert shedding.orders.splits == [BUNDLES[0]]
    assert shedding.orders.moves == []
    await shedding.close()


async def test_who_has_come_gets_its_part_without_waiting_for_the_interval(
    store: MetadataStore,
) -> None:
    settings = BrokerSettings(shedding_interval_ms=3_600_000, shedding_follow_up_ms=10)
    shedding = Shedding(store, settings)
    await shedding.start(*BUNDLES[:4], leases=4)
    shedding.shedder.start()
    async with asyncio.timeout(WAIT_S):
        await shedding.orders.told.wait()
    source, _, destination = shedding.orders.moves[0]
    assert (source, destination) == ("b1", "b2")
    await shedding.close()


async def test_a_moved_bundle_stays_only_where_it_was_moved_to(store: MetadataStore) -> None:
    shedding = Shedding(store)
    await shedding.start(*BUNDLES[:4], leases=4)
    assert await shedding.shedder.look() == 2
    moved = [bundle for _, bundle, _ in shedding.orders.moves]
    kept = [bundle for bundle in BUNDLES[:4] if bundle not in moved]
    # The broker that got them shows them, and is the one with too much now: they stay there.
    for bundle in moved:
        await store.delete(bundle.lease_path)
        lease = lease_of(record("b2")).encode()
        await store.create(bundle.lease_path, lease, ephemeral=True)
    await register(store, record("b2", *moved))
    await register(store, record("b1"))
    await wait_until(shedding.brokers, lambda: _bundles_of(shedding.brokers, "b1") == set())
    await wait_until(shedding.brokers, lambda: len(_bundles_of(shedding.brokers, "b2")) == 2)
    assert await shedding.shedder.look() == 0
    # It has handed them over, as at its end, and has come back with nothing.
    for bundle in moved:
        await store.delete(bundle.lease_path)
        lease = lease_of(record("b1")).encode()
        await store.create(bundle.lease_path, lease, ephemeral=True)
    await register(store, record("b1", *kept, *moved))
    await register(store, record("b2"))
    await wait_until(shedding.brokers, lambda: len(_bundles_of(shedding.brokers, "b1")) == 4)
    await wait_until(shedding.brokers, lambda: _bundles_of(shedding.brokers, "b2") == set())
    assert await shedding.shedder.look() == 2
    await shedding.close()


async def test_a_moved_bundle_counts_in_full_while_its_clients_come_to_the_new_place(
    store: MetadataStore,
) -> None:
    shedding = Shedding(store)
    await shedding.start(*BUNDLES, leases=8, topics=100)
    assert await shedding.shedder.look() == 4
    moved = [bundle for _, bundle, _ in shedding.orders.moves]
    kept = [bundle for bundle in BUNDLES if bundle not in moved]
    await register(store, record("b1", *kept, topics=100))
    await register(store, record("b2", *moved, topics=1))
    await wait_until(shedding.brokers, lambda: len(_bundles_of(shedding.brokers, "b1")) == 4)
    await wait_until(shedding.brokers, lambda: len(_bundles_of(shedding.brokers, "b2")) == 4)
    assert await shedding.shedder.look() == 0
    # All clients that come have come: what it is reported to cost is what it costs.
    shedding.clock.later_s = BrokerSettings().placing_remembered_ms / 1000
    assert await shedding.shedder.look() > 0
    await shedding.close()


def _bundles_of(brokers: Brokers, name: str) -> set[str]:
    report = brokers.report_of(name)
    return set(report.bundles) if report is not None else set()
