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


def unloading_of(world: World) -> Unloading:
    return Unloading(
        world.leases,
        registration=world.registration,
        layouts=cast("Layouts", world.layout),
        placement=cast("Placement", Alone()),
        holder=lambda: cast("TopicHolder", NoTopics()),
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
