"""A client that goes while its subscription is being created."""

import asyncio

from magnetar.cursors import NonDurableCursor
from magnetar.ledger.position import EARLIEST
from tests.unit.broker.keeping.world import World
from tests.waiting import settle


async def test_a_subscription_that_was_stored_for_a_client_that_went_is_known_to_the_topic() -> (
    None
):
    """Else the topic would trim what the stored cursor needs, and its next owner would find it."""
    world = await World.make()
    stored = asyncio.Event()

    async def open_cursor() -> NonDurableCursor:
        await stored.wait()
        return NonDurableCursor(world.log, "s", initial=EARLIEST)

    creating = asyncio.ensure_future(world.topic.subscriptions.ensure("s", open_cursor))
    await settle()
    creating.cancel()
    await settle()
    stored.set()
    await asyncio.wait([creating])
    assert creating.cancelled()
    assert world.topic.subscriptions["s"].is_open


async def test_a_subscription_that_could_not_be_stored_for_a_client_that_went_is_forgotten() -> (
    None
):
    world = await World.make()
    failed = asyncio.Event()

    async def open_cursor() -> NonDurableCursor:
        await failed.wait()
        raise RuntimeError("not stored")

    creating = asyncio.ensure_future(world.topic.subscriptions.ensure("s", open_cursor))
    await settle()
    creating.cancel()
    failed.set()
    await asyncio.wait([creating])
    assert creating.cancelled()
    assert "s" not in world.topic.subscriptions
