"""Chunked messages between the receiver queue and the application, whatever the time it takes."""

import asyncio
from collections.abc import Iterable, Iterator
from dataclasses import replace

import pytest

from magnetar.sdk.errors import CorruptMessageError
from magnetar.sdk.message_id import MessageId
from magnetar.sdk.settings import ConsumerSettings, SubscriptionType
from tests.simulation.loop import SimLoop
from tests.unit.sdk.consuming.entry_scene import Scene, batch, chunk, plain

AGE_S = 60.0
EXCLUSIVE = ConsumerSettings(chunked_message_age_ms=int(AGE_S * 1000))
SHARED = replace(EXCLUSIVE, subscription_type=SubscriptionType.SHARED)


@pytest.fixture
def loop() -> Iterator[SimLoop]:
    loop = SimLoop()  # type: ignore[abstract]  # no sockets, signals, subprocesses
    yield loop
    loop.close()


def test_what_is_queued_comes_whole_however_late_it_is_taken(loop: SimLoop) -> None:
    async def story() -> None:
        scene = Scene(EXCLUSIVE)
        scene.queue.extend(
            [chunk(0, "b", 0, b"b"), plain(1, b"x"), chunk(2, "b", 1, b"B"), plain(3, b"y")]
        )
        assert scene.take() == b"x"
        await asyncio.sleep(10 * AGE_S)  # the application works on it
        assert [scene.take(), scene.take(), scene.take()] == [b"bB", b"y", None]
        assert scene.acknowledged == []

    loop.run(story())


def test_a_message_is_given_up_once_its_next_chunk_was_waited_for_too_long(loop: SimLoop) -> None:
    async def story() -> None:
        scene = Scene(SHARED)
        scene.queue.extend([chunk(0, "b", 0, b"b", of=3), plain(1, b"x"), plain(2, b"y")])
        assert scene.take() == b"x"
        await asyncio.sleep(AGE_S)  # y is queued, and more chunks may be behind it
        scene.queue.extend([chunk(3, "b", 1, b"B", of=3)])
        assert scene.take() == b"y"
        assert scene.take() is None
        scene.queue.pause()
        await asyncio.sleep(AGE_S)  # the broker may not send
        scene.queue.resume()
        await asyncio.sleep(AGE_S / 2)
        assert scene.asked_later == []
        await asyncio.sleep(AGE_S / 2)
        assert scene.asked_later == [(7, 0), (7, 3)]
        assert len(scene.opening.chunks) == 0

    loop.run(story())


def test_a_message_is_given_up_by_a_consumer_whose_queue_is_never_empty(loop: SimLoop) -> None:
    """An incomplete message would keep cumulative acknowledgements from passing it, for good."""

    async def story() -> None:
        scene = Scene(EXCLUSIVE)
        scene.queue.extend([chunk(0, "b", 0, b"b"), plain(1, b"x"), plain(2, b"x")])
        assert scene.take() == b"x"
        await _stay_busy(scene, range(60))
        assert scene.acks.begun_before(MessageId(7, 60)) == (7, 0)
        await _stay_busy(scene, range(60, 76))
        assert scene.acks.begun_before(MessageId(7, 60)) is None
        scene.opening.close()

    loop.run(story())


async def _stay_busy(
    scene: Scene, seconds: Iterable[int], *, published_per_s: float = 1, ahead_s: float = 0
) -> None:
    """Take two messages each second, and leave one in the queue. Those of one second were published
    `published_per_s` after those of the second before, and `ahead_s` later every other second."""
    for second in seconds:
        entry, published_s = 3 + 2 * second, second * published_per_s + second % 2 * ahead_s
        scene.queue.extend(
            [plain(entry + at, b"x", published_s=published_s) for at in range(2)],
        )
        await asyncio.sleep(1)
        assert [scene.take(), scene.take()] == [b"x", b"x"]
        assert scene.queue.has_some


@pytest.mark.parametrize("ahead_s", [0, 20])
def test_a_chunk_counts_that_was_stored_in_time_behind_a_backlog(
    loop: SimLoop, ahead_s: float
) -> None:
    """The broker has no permits for it while the application takes a minute's messages in ten. The
    clock of one producer may be ahead of those of others."""

    async def story() -> None:
        scene = Scene(EXCLUSIVE)
        scene.queue.extend([chunk(0, "b", 0, b"b"), plain(1, b"x"), plain(2, b"x")])
        assert scene.take() == b"x"
        await _stay_busy(scene, range(300), published_per_s=0.1, ahead_s=ahead_s)
        scene.queue.extend([chunk(1000, "b", 1, b"B")])
        assert [scene.take(), scene.take()] == [b"x", b"bB"]
        scene.opening.close()

    loop.run(story())


@pytest.mark.parametrize("is_batch", [False, True])
def test_a_chunk_that_came_in_time_counts_however_slowly_a_full_queue_is_taken(
    loop: SimLoop, is_batch: bool
) -> None:
    async def story() -> None:
        scene = Scene(EXCLUSIVE)
        entries = [batch(1, [b"x"] * 9)] if is_batch else [plain(1 + at, b"x") for at in range(9)]
        scene.queue.extend([chunk(0, "b", 0, b"b"), *entries])
        assert scene.take() == b"x"
        await asyncio.sleep(0.9 * AGE_S)
        scene.queue.extend([chunk(20, "b", 1, b"B"), plain(21, b"y"), plain(22, b"z")])
        for entry in range(30, 38):
            assert scene.take() == b"x"
            scene.queue.extend([plain(entry, b"x")])
            await asyncio.sleep(AGE_S)
        assert [scene.take(), scene.take(), scene.take()] == [b"bB", b"y", b"z"]
        scene.opening.close()

    loop.run(story())


def test_nothing_is_given_up_while_taken_messages_leave_the_broker_no_permits(
    loop: SimLoop,
) -> None:
    async def story() -> None:
        scene = Scene(EXCLUSIVE)
        scene.queue.extend([chunk(0, "b", 0, b"b"), batch(1, [b"x"] * 1_000)])
        assert scene.take() == b"x"  # the others are opened, and wait to be taken
        await asyncio.sleep(10 * AGE_S)
        assert len(scene.opening.chunks) == 1
        scene.opening.close()

    loop.run(story())


@pytest.mark.parametrize("acknowledges", [False, True])
def test_an_exclusive_consumer_reports_a_message_that_was_given_up(
    loop: SimLoop, acknowledges: bool
) -> None:
    async def story() -> None:
        scene = Scene(replace(EXCLUSIVE, acknowledge_incomplete_chunks=acknowledges))
        scene.queue.extend([chunk(0, "b", 0, b"b")])
        assert scene.take() is None
        await asyncio.sleep(AGE_S)
        scene.queue.extend([chunk(1, "b", 1, b"B"), plain(2, b"x")])
        if not acknowledges:
            with pytest.raises(CorruptMessageError, match="given up") as caught:
                scene.take()
            assert caught.value.message_id.first_chunk == MessageId(7, 0)
        assert scene.take() == b"x"
        assert scene.acknowledged == ([(7, 0), (7, 1)] if acknowledges else [])

    loop.run(story())
