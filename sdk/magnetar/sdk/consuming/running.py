"""`Consumer.run`: a handler for each message, several at a time, with an orderly end.

Each of the handlers that may run at a time has a lane. A message with a key always takes the lane
of its key, so that messages of a key stay in order. A message without a key takes a free lane. At
most two messages per lane are taken, one with its handler and one after it, and one more that
waits for room in its lane.

Outcome of a message:

| the handler | the message |
|---|---|
| returns | is acknowledged |
| raises `RetryLater` | goes to the retry topic (`retry_topic` of the settings), and comes again |
| raises `GiveUp` | goes to the dead letter topic (`dead_letters` of the settings) at once |
| raises anything else | is redelivered after `nack_delay_ms` |
| is cancelled, since the grace is over | is redelivered |

A message that did not reach its handler before the end is the next one to be received.

An error that is neither the handler's nor an `SdkError` is a defect. It ends the run in good order,
because a lane that stopped unnoticed would hold up the messages of its keys.
"""

import asyncio
import contextlib
import logging
import signal
import zlib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Sequence
from typing import Any, Protocol

from magnetar.sdk.consuming.dead_letters import check_delay
from magnetar.sdk.errors import CorruptMessageError, SdkError
from magnetar.sdk.message import Message

_log = logging.getLogger("magnetar.sdk")

LANE_MESSAGES_MAX = 2
"""Most messages of one lane, including the one that is handled."""


class HandledConsumer(Protocol):
    """The part of a consumer that a run of a handler uses."""

    def __aiter__(self) -> AsyncIterator[Message[Any]]: ...
    def acknowledge(self, what: Message[Any]) -> object: ...
    def negative_acknowledge(self, what: Message[Any]) -> object: ...
    def redeliver(self, what: Iterable[Message[Any]]) -> None: ...
    async def reconsume_later(self, message: Message[Any], *, delay_s: float) -> None: ...
    async def give_up(self, message: Message[Any]) -> None: ...
    async def flush_acks(self, *, confirmed: bool) -> None: ...
    def untake(self, messages: Sequence[Message[Any]]) -> None: ...


class RetryLater(Exception):
    """Raised by a handler to redeliver the message after a delay, through the retry topic."""

    def __init__(self, delay_s: float = 60.0) -> None:
        """Take the delay in seconds.

        Raises:
            ValueError: it is no number, or longer than 100 years.
        """
        check_delay(delay_s)
        super().__init__(f"in {delay_s:g} s")
        self.delay_s = delay_s


class GiveUp(Exception):
    """Raised by a handler to send the message to the dead letter topic, since no retry helps."""


class _Lane:
    """A queue of messages that are handled one after the other."""

    def __init__(self) -> None:
        self.waiting: asyncio.Queue[Message[Any]] = asyncio.Queue(LANE_MESSAGES_MAX)
        self.count = 0
        """Number of waiting messages, plus the one that is handled."""


async def run_handler(
    consumer: HandledConsumer,
    handler: Callable[[Message[Any]], Awaitable[object]],
    *,
    concurrency: int,
    stop: asyncio.Event,
    stop_on_signals: bool,
    grace_s: float,
) -> None:
    """Run a handler on a consumer's messages; see `Consumer.run`.

    Raises:
        ValueError: `concurrency` is below 1.
    """
    if concurrency < 1:
        raise ValueError(f"concurrency is {concurrency}; allowed are 1 and more")
    with _signals_set(stop) if stop_on_signals else contextlib.nullcontext():
        await _Run(consumer, handler, concurrency, stop, grace_s).run()


@contextlib.contextmanager
def _signals_set(stop: asyncio.Event) -> Iterator[None]:
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    try:
        yield
    finally:
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.remove_signal_handler(number)


class _Run:
    """One call of `Consumer.run`."""

    def __init__(
        self,
        consumer: HandledConsumer,
        handler: Callable[[Message[Any]], Awaitable[object]],
        concurrency: int,
        stop: asyncio.Event,
        grace_s: float,
    ) -> None:
        self._consumer = consumer
        self._handler = handler
        self._stop = stop
        self._grace_s = grace_s
        self._lanes = [_Lane() for _ in range(concurrency)]
        self._freed = asyncio.Event()
        """Set when a lane gets room."""
        self._is_over = False
        self._unstarted: list[Message[Any]] = []
        """Messages taken and not given to a handler, in the order of taking."""

    async def run(self) -> None:
        taking = asyncio.create_task(self._take(), name="magnetar taking")
        working = [
            asyncio.create_task(self._work(lane), name="magnetar handler") for lane in self._lanes
        ]
        stopped = asyncio.create_task(self._stop.wait(), name="magnetar stop")
        ends = {stopped, *working}  # a lane works until it is cancelled, or fails
        try:
            await asyncio.wait({taking, *ends}, return_when=asyncio.FIRST_COMPLETED)
            if not any(each.done() for each in ends):
                # The topic has ended, or the consumer is lost: the taken messages are still
                # handled.
                idle = asyncio.create_task(self._until_idle(), name="magnetar idle")
                await asyncio.wait({idle, *ends}, return_when=asyncio.FIRST_COMPLETED)
                idle.cancel()
            await self._end(taking)
        finally:
            self._is_over = True
            for task in (taking, stopped, *working):
                task.cancel()
            self._give_back_waiting()
            await asyncio.gather(taking, stopped, *working, return_exceptions=True)
            self._consumer.untake(self._unstarted)
        for task in (*working, taking):
            if not task.cancelled() and (error := task.exception()) is not None:
                raise error

    async def _end(self, taking: "asyncio.Task[None]") -> None:
        """Stop taking messages, and let running handlers finish."""
        taking.cancel()
        await asyncio.gather(taking, return_exceptions=True)
        self._give_back_waiting()
        try:
            async with asyncio.timeout(self._grace_s):
                await self._until_idle()
                await self._consumer.flush_acks(confirmed=True)
        except TimeoutError:
            _log.warning("handlers_cut_off %r: after %g s", self._consumer, self._grace_s)
        except SdkError as error:
            _log.warning("acknowledgements_not_confirmed %r: %s", self._consumer, error)

    def _give_back_waiting(self) -> None:
        waiting = []
        for lane in self._lanes:
            while not lane.waiting.empty():
                lane.count -= 1
                waiting.append(lane.waiting.get_nowait())
        # Messages in lanes were taken before the one that the taker still held.
        self._unstarted = sorted(waiting, key=lambda each: each.message_id) + self._unstarted

    # -- taking

    async def _take(self) -> None:
        """Take messages until the topic has ended."""
        while True:
            try:
                async for message in self._consumer:
                    await self._place(message)
                return
            except CorruptMessageError as error:
                # Not acknowledged: it stays in the backlog, where an operator can see it.
                _log.warning("message_not_handled %r: %s", self._consumer, error)

    async def _place(self, message: Message[Any]) -> None:
        try:
            while (lane := self._lane_for(message)) is None:
                self._freed.clear()
                await self._freed.wait()
        except asyncio.CancelledError:
            self._unstarted.append(message)
            raise
        lane.count += 1
        lane.waiting.put_nowait(message)

    def _lane_for(self, message: Message[Any]) -> _Lane | None:
        """Return a lane with room for the message; None if there is none now."""
        key = message.ordering_key or message.key_bytes
        if key:
            lane = self._lanes[zlib.crc32(key) % len(self._lanes)]
            return lane if lane.count < LANE_MESSAGES_MAX else None
        return next((lane for lane in self._lanes if not lane.count), None)

    # -- handling

    async def _work(self, lane: _Lane) -> None:
        while not self._is_over:  # a handler may suppress the cancellation of its lane
            message = await lane.waiting.get()
            try:
                await self._handle(message)
            finally:
                lane.count -= 1
                self._freed.set()

    async def _handle(self, message: Message[Any]) -> None:
        consumer = self._consumer
        try:
            await self._handler(message)
        except asyncio.CancelledError as error:
            if self._is_over:
                consumer.redeliver([message])
                raise
            self._on_failed(message, error)  # something that the handler awaited was cancelled
        except RetryLater as later:
            await self._or_again(message, consumer.reconsume_later(message, delay_s=later.delay_s))
        except GiveUp:
            await self._or_again(message, consumer.give_up(message))
        except Exception as error:  # noqa: BLE001  # An application's code; the message comes again.
            self._on_failed(message, error)
        else:
            consumer.acknowledge(message)

    def _on_failed(self, message: Message[Any], error: BaseException) -> None:
        _log.warning("handler_failed %r: %r", message, error)
        self._consumer.negative_acknowledge(message)

    async def _or_again(self, message: Message[Any], work: Awaitable[None]) -> None:
        try:
            await work
        except asyncio.CancelledError as error:
            if self._is_over:
                self._consumer.redeliver([message])
                raise
            self._on_failed(message, error)  # such as a producer that the consumer's close ends
        except Exception as error:
            _log.warning("handler_failed %r: not moved: %s", message, error)
            self._consumer.negative_acknowledge(message)
            if not isinstance(error, SdkError):
                raise

    async def _until_idle(self) -> None:
        while any(lane.count for lane in self._lanes):
            self._freed.clear()
            await self._freed.wait()
