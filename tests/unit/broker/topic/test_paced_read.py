import asyncio

import pytest

from magnetar.broker.base.settings.broker import BrokerSettings
from magnetar.broker.topic.dispatch.paced_read import PacedRead
from magnetar.ledger.position import Position

AT = Position(3, 4)


def paced(ready: asyncio.Event, pause_ms: int = 1) -> PacedRead:
    settings = BrokerSettings(read_retry_ms=pause_ms)
    return PacedRead(settings, failure_event="read_failed", label="t/s", on_ready=ready.set)


async def nothing() -> None:
    """A read that ends at once."""


async def test_a_read_that_failed_is_named_and_tried_again_after_a_pause() -> None:
    ready = asyncio.Event()
    reading = paced(ready)
    reading.begin(nothing())
    reading.fail(AT, OSError("no bookie"))
    assert reading.is_busy
    assert reading.unreadable == (AT, "no bookie")
    async with asyncio.timeout(30):
        await ready.wait()
    assert not reading.is_busy
    assert reading.unreadable == (AT, "no bookie")  # until a read succeeds
    reading.begin(nothing())
    reading.done()
    assert not reading.is_busy
    assert reading.unreadable is None


async def test_there_is_one_read_at_a_time() -> None:
    reading = paced(asyncio.Event())
    reading.begin(nothing())
    second = nothing()
    with pytest.raises(AssertionError):
        reading.begin(second)
    second.close()


@pytest.mark.parametrize("has_failed", [True, False])
async def test_what_was_stopped_neither_ends_nor_begins_again(has_failed: bool) -> None:
    ready = asyncio.Event()
    reading = paced(ready, pause_ms=60_000)
    hangs = asyncio.Event()

    async def read() -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            hangs.set()
            raise

    reading.begin(nothing() if has_failed else read())
    await asyncio.sleep(0)
    if has_failed:
        reading.fail(AT, OSError("no bookie"))
    reading.stop()
    assert not reading.is_busy
    assert reading.unreadable is None
    await asyncio.sleep(0)
    assert hangs.is_set() is not has_failed
    assert not ready.is_set()
