"""`Consumer.run` when something other than the handler fails, with a consumer that does no I/O."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from types import SimpleNamespace
from typing import Any, cast

import pytest

from magnetar.sdk.consuming.running import RetryLater, run_handler
from magnetar.sdk.errors import SdkError
from magnetar.sdk.message import Message
from magnetar.sdk.message_id import MessageId

MESSAGES = 5


def numbered(number: int) -> Message[Any]:
    fields = {"data": b"%d" % number, "message_id": MessageId(1, number)}
    return cast(Message[Any], SimpleNamespace(ordering_key=None, key_bytes=b"", **fields))


class Consumer:
    """Gives five messages and then waits, or ends."""

    def __init__(
        self, failure: Exception | asyncio.Future[None] | None = None, *, ends: bool = False
    ) -> None:
        """Take what `reconsume_later` raises, or waits for."""
        self.failure, self.ends = failure, ends
        self.acknowledged: list[bytes] = []
        self.negative: list[bytes] = []
        self.redelivered: list[bytes] = []
        self.untaken: list[bytes] = []

    async def __aiter__(self) -> AsyncIterator[Message[Any]]:
        for number in range(MESSAGES):
            yield numbered(number)
        if not self.ends:
            await asyncio.get_running_loop().create_future()

    def acknowledge(self, what: Message[Any]) -> None:
        self.acknowledged.append(what.data)

    def negative_acknowledge(self, what: Message[Any]) -> None:
        self.negative.append(what.data)

    def redeliver(self, what: Iterable[Message[Any]]) -> None:
        self.redelivered += [each.data for each in what]

    async def reconsume_later(self, message: Message[Any], *, delay_s: float) -> None:
        if isinstance(self.failure, Exception):
            raise self.failure
        if self.failure is not None:
            await self.failure

    async def give_up(self, message: Message[Any]) -> None:
        raise NotImplementedError

    async def flush_acks(self, *, confirmed: bool) -> None:
        pass

    def untake(self, messages: Sequence[Message[Any]]) -> None:
        self.untaken += [each.data for each in messages]


async def run(
    consumer: Consumer,
    handler: Callable[[Message[Any]], Awaitable[None]],
    *,
    concurrency: int = 1,
    grace_s: float = 5,
    stop: asyncio.Event | None = None,
) -> None:
    async with asyncio.timeout(5):
        await run_handler(
            consumer,
            handler,
            concurrency=concurrency,
            stop=stop or asyncio.Event(),
            stop_on_signals=False,
            grace_s=grace_s,
        )


async def postpone_first(message: Message[Any]) -> None:
    if message.data == b"0":
        raise RetryLater(1)


@pytest.mark.parametrize("delay_s", [float("nan"), float("inf"), -float("inf"), 1e12])
async def test_a_delay_that_no_message_can_have_is_refused_in_the_handler(delay_s: float) -> None:
    async def handle(message: Message[Any]) -> None:
        if message.data == b"0":
            with pytest.raises(ValueError, match="delay"):
                RetryLater(delay_s)
            raise RetryLater(delay_s)

    consumer = Consumer(ends=True)
    await run(consumer, handle)
    assert consumer.negative == [b"0"]
    assert consumer.acknowledged == [b"1", b"2", b"3", b"4"]


@pytest.mark.parametrize("concurrency", [1, 2])
@pytest.mark.parametrize("ends", [False, True])
async def test_an_unexpected_error_ends_the_run_and_no_message_is_lost(
    concurrency: int, ends: bool
) -> None:
    consumer = Consumer(LookupError("a defect"), ends=ends)
    with pytest.raises(LookupError, match="a defect"):
        await run(consumer, postpone_first, concurrency=concurrency)
    assert consumer.negative == [b"0"]
    others = consumer.acknowledged + consumer.untaken
    assert b"0" not in others
    assert len(set(others)) == len(others)


async def test_an_sdk_error_ends_no_run() -> None:
    consumer = Consumer(SdkError("no retry topic"), ends=True)
    await run(consumer, postpone_first)
    assert consumer.negative == [b"0"]
    assert consumer.acknowledged == [b"1", b"2", b"3", b"4"]


async def test_a_handler_that_awaits_something_cancelled_has_failed() -> None:
    async def handle(message: Message[Any]) -> None:
        if message.data == b"0":
            other = asyncio.create_task(asyncio.sleep(0))
            other.cancel()
            await other

    consumer = Consumer(ends=True)
    await run(consumer, handle)
    assert consumer.negative == [b"0"]
    assert consumer.acknowledged == [b"1", b"2", b"3", b"4"]


async def test_a_message_whose_postponing_is_cancelled_elsewhere_comes_again() -> None:
    cancelled: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    cancelled.cancel()
    consumer = Consumer(cancelled, ends=True)
    await run(consumer, postpone_first)
    assert consumer.negative == [b"0"]
    assert consumer.acknowledged == [b"1", b"2", b"3", b"4"]


async def test_a_message_whose_postponing_is_cut_off_comes_again() -> None:
    stop = asyncio.Event()

    async def handle(message: Message[Any]) -> None:
        stop.set()
        raise RetryLater(1)

    consumer = Consumer(asyncio.get_running_loop().create_future())
    await run(consumer, handle, stop=stop, grace_s=0)
    assert consumer.redelivered == [b"0"]
    assert consumer.acknowledged == []


async def test_a_handler_that_ignores_its_cancellation_does_not_block_the_end() -> None:
    stop = asyncio.Event()

    async def handle(message: Message[Any]) -> None:
        stop.set()
        try:
            await asyncio.get_running_loop().create_future()
        except asyncio.CancelledError:
            pass

    consumer = Consumer()
    await run(consumer, handle, stop=stop, grace_s=0)
    assert consumer.acknowledged == [b"0"]
