"""Giving a bundle up while the store is away."""

from collections.abc import Callable, Collection, Sequence
from typing import cast

import pytest

from magnetar.broker.base.errors import BrokerMetadataError
from magnetar.broker.base.settings.broker import BrokerSettings
from magnetar.broker.cluster.balance.bundles import BundleId
from magnetar.broker.cluster.balance.layouts import Layouts
from magnetar.broker.cluster.ownership.changes import Changes
from magnetar.broker.cluster.ownership.placement import Placement
from magnetar.broker.cluster.ownership.protocol import TopicHolder
from magnetar.broker.cluster.ownership.records import BrokerRecord
from magnetar.broker.cluster.ownership.unloading import Unloading
from magnetar.ledger.system import SystemClock
from magnetar.sdk.wire import TopicName
from tests.unit.broker.ownership.test_leases import BUNDLE, PATH, World


class Alone:
    """No other broker."""

    def choose(self, bundle: BundleId, *, excluding: Collection[str] = ()) -> str | None:
        return None


class NoTopics:
    def names_of(self, belongs: Callable[[TopicName], bool]) -> Sequence[TopicName]:
        return []

    async def hand_over(
        self, names: Sequence[TopicName], destination: object, *, timeout_s: float
    ) -> None: ...


class OneOther(Alone):
    """One other broker, which gets every bundle."""

    def choose(self, bundle: BundleId, *, excluding: Collection[str] = ()) -> str | None:
        return "other"

    def broker(self, name: str) -> BrokerRecord:
        return BrokerRecord(
            name=name,
            native_url="pulsar://other:6650",
            http_url="http://other:8080",
            session_token="token-of-other",
        )

    def note(self, bundle: BundleId, name: str) -> None: ...


class BrokenTopics(NoTopics):
    """Topics that cannot be handed over, because of a defect."""

    def __init__(self) -> None:
        self.dropped: list[str] = []

    def names_of(self, belongs: Callable[[TopicName], bool]) -> Sequence[TopicName]:
        return [TopicName.parse("persistent://public/default/t")]

    async def hand_over(
        self, names: Sequence[TopicName], destination: object, *, timeout_s: float
    ) -> None:
        raise KeyError("a defect")

    def drop(self, names: Sequence[TopicName], reason: str) -> None:
        self.dropped += map(str, names)


def unloading_of(
    world: World, placement: Alone | None = None, topics: NoTopics | None = None
) -> Unloading:
    return Unloading(
        world.leases,
        registration=world.registration,
        layouts=cast("Layouts", world.layout),
        placement=cast("Placement", placement or Alone()),
        holder=lambda: cast("TopicHolder", topics or NoTopics()),
        changes=Changes(),
        clock=SystemClock(),
        settings=BrokerSettings(
            lookup_wait_ms=300, lookup_retry_ms=1, unload_timeout_ms=300, unloads_at_once=1
        ),
    )


async def test_who_unloads_a_bundle_is_told_that_it_goes_on_once_the_store_is_back() -> None:
    world = await World.made()
    unloading = unloading_of(world)
    world.store.refused = ["get"] * 100_000
    with pytest.raises(BrokerMetadataError, match="the unload continues"):
        await unloading.unload_bundle(BUNDLE)
    world.store.refused.clear()
    await unloading.unload_bundle(BUNDLE)
    assert PATH not in world.store.nodes


async def test_an_announced_move_gives_the_lease_up_even_if_the_topics_are_not_handed_over() -> (
    None
):
    world, topics = await World.made(), BrokenTopics()
    unloading = unloading_of(world, OneOther(), topics)
    await unloading.unload_bundle(BUNDLE)
    assert PATH not in world.store.nodes
    assert topics.dropped == ["persistent://public/default/t"]
