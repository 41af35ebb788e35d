"""What operators ask of a topic that is closed at the same time."""

import asyncio

import pytest

from magnetar.broker.base.errors import (
    NotAllowedError,
    ServiceNotReadyError,
    SubscriptionNotFoundError,
)
from magnetar.broker.topic.subscription import Subscription
from magnetar.broker.topics import operating
from magnetar.cursors import NonDurableCursor
from magnetar.ledger.position import EARLIEST
from tests.unit.broker.keeping.world import Copies, World, backlog
from tests.waiting import settle


async def test_a_deletion_that_a_moving_topic_prevents_is_not_reported_as_done() -> None:
    world = await World.make()
    subscription = await world.subscription()
    async with subscription.lock:  # as while somebody joins
        deleting = asyncio.ensure_future(
            world.topic.subscriptions.delete(subscription, is_forced=True)
        )
        await settle()
        world.topic.disconnect_all()
    with pytest.raises(ServiceNotReadyError):
        await deleting


async def test_an_expiry_that_a_moving_topic_prevents_is_not_reported_as_done() -> None:
    world = await World.make()
    world.store(60, 50, 1)
    subscription = await world.subscription()
    world.log.read_gate = asyncio.Event()

    async def expire(subscription: Subscription) -> None:
        await world.keeping.expiry.expire(world.topic, [subscription], age_s=10)
        await operating.persist(subscription)

    expiring = asyncio.ensure_future(expire(subscription))
    await settle()
    world.topic.disconnect_all()
    world.log.read_gate.set()
    with pytest.raises(ServiceNotReadyError):
        await expiring
    assert backlog(subscription) == 3


async def test_a_skip_that_a_moving_topic_prevents_is_not_reported_as_done() -> None:
    world = await World.make()
    world.store(3, 2, 1)
    subscription = await world.subscription()
    world.topic.disconnect_all()
    with pytest.raises(ServiceNotReadyError):
        await operating.skip(world.topic, subscription, 2)
    assert backlog(subscription) == 3


async def test_a_creation_that_a_moving_topic_overtakes_is_not_reported_as_done() -> None:
    world = await World.make()

    async def open_cursor() -> NonDurableCursor:
        world.topic.disconnect_all()
        return NonDurableCursor(world.log, "s", initial=EARLIEST)

    with pytest.raises(ServiceNotReadyError):
        await world.topic.subscriptions.ensure("s", open_cursor)


async def test_copies_are_skipped_by_the_name_of_their_cursor_and_that_is_stored() -> None:
    world = await World.make()
    world.store(3, 2, 1)
    copies = Copies(world)
    assert operating.backlog_of(world.topic, copies.name) is copies
    assert await operating.skip(world.topic, copies, 2) == 2
    assert (copies.cursor.backlog_entries, copies.cursor.persists) == (1, 1)
    await operating.skip_all(world.topic, copies)
    assert (copies.cursor.backlog_entries, copies.cursor.persists) == (0, 2)


async def test_copies_that_are_closing_are_not_reported_as_skipped() -> None:
    world = await World.make()
    world.store(1)
    copies = Copies(world)
    copies.is_open = False
    with pytest.raises(ServiceNotReadyError):
        await operating.skip_all(world.topic, copies)


async def test_to_truncate_drops_copies_too_and_that_is_stored() -> None:
    world = await World.make()
    world.store(3, 2, 1)
    copies, closing = Copies(world), Copies(world)
    closing.name, closing.is_open = "pulsar.repl.north", False
    await operating.truncate(world.topic)
    assert (copies.cursor.backlog_entries, copies.cursor.persists) == (0, 1)
    assert closing.cursor.persists == 0


async def test_the_backlog_of_copies_is_no_subscription() -> None:
    world = await World.make()
    copies = Copies(world)
    with pytest.raises(NotAllowedError, match="backlog of copies to cluster west"):
        operating.check_subscription_alone(world.topic, copies.name)
    for name in (copies.name, "pulsar.repl.north"):
        with pytest.raises(SubscriptionNotFoundError):
            operating.subscription_of(world.topic, name)
