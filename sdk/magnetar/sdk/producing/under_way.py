"""Pending sends of one producer: receipts, refusals, timeouts, and calls that wait.

Receipts come in the order of the sends. The error of a message without a callback is kept for the
next `flush`. When sends leave, the producer is notified once, by `on_progress`.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress

from magnetar.sdk.errors import SdkError, SendTimeoutError
from magnetar.sdk.message_id import MessageId
from magnetar.sdk.pending_sends import OnSent, PendingSend, PendingSends, receipt_id
from magnetar.sdk.ports import Clock
from magnetar.sdk.producer import OnConfirmed
from magnetar.sdk.stats import ProducerCounters
from magnetar.sdk.wire.pulsar_pb2 import CommandSendReceipt
from magnetar.sdk.wire.topic_name import TopicName

_log = logging.getLogger("magnetar.sdk")


class SendsUnderWay:
    """Tracks the sends of one producer until their outcome is known."""

    def __init__(
        self,
        topic: TopicName,
        clock: Clock,
        *,
        timeout_ms: int,
        on_progress: Callable[[], None],
        is_connected: Callable[[], bool],
    ) -> None:
        """Start with nothing pending. `timeout_ms`: the send timeout; 0 for none."""
        self.pending = PendingSends()
        self.counters = ProducerCounters()
        self.last_stored_sequence_id = -1
        self._topic = str(topic)
        self._partition = topic.partition_index
        self._clock = clock
        self._timeout_ms = timeout_ms
        self._on_progress = on_progress
        self._is_connected = is_connected
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._flush_waiters: deque[tuple[int, asyncio.Future[None]]] = deque()
        self._unreported: SdkError | None = None
        self._fails_together = False
        self._entry_failure: SdkError | None = None

    # -- outcomes

    def begin_entry(self) -> None:
        """Announce an entry under a sequence id that the caller gives.

        After a failed entry none may be stored: its id would imply that the failed one is stored,
        too.

        Raises:
            SdkError: an earlier entry has failed.
        """
        if self._entry_failure is not None:
            raise self._entry_failure
        self._fails_together = True

    def on_receipts(
        self, receipts: list[CommandSendReceipt], on_confirmed: OnConfirmed | None
    ) -> bool:
        """Handle the receipts of one network read; return whether they match the oldest pending
        sends."""
        taken, well = self.pending.take(receipts)
        partition = self._partition
        for send, receipt in taken:
            if send.on_sent or send.chunked is not None:
                send.finish(receipt_id(receipt, partition), None, tell)
        if taken:
            sends = [send for send, _ in taken]
            now_s = self._clock.monotonic_s()
            self.last_stored_sequence_id = sends[-1].highest_sequence_id
            self.counters.on_stored(sends, now_s)
            if on_confirmed is not None:
                on_confirmed(sends, now_s)
            self.after_progress()
        return well

    def fail_sequence(self, sequence_id: int, error: SdkError) -> None:
        """Fail the message that the broker refused."""
        sends = self.pending.take_sequence(sequence_id)
        if sends:
            self._fail(sends, error)
            self.after_progress()

    def fail_all(self, error: SdkError) -> None:
        """Fail all pending sends: no receipt will come."""
        self._fail(self.pending.take_older(float("inf")), error)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self.after_progress()

    def refuse(self, messages: int, on_sent: Sequence[OnSent | None], error: SdkError) -> None:
        """Report messages that could not be sent. The caller calls `after_progress` then."""
        self.counters.on_failed(messages)
        for each in on_sent:
            if each is not None:
                tell(each, None, error)
        # A batch may hold messages with and without callbacks.
        if None in on_sent if on_sent else messages:
            self.keep_error(None, error)

    def after_progress(self) -> None:
        """Notify flushes and the producer, after messages have left."""
        oldest = self.pending.oldest
        waiters = self._flush_waiters
        while waiters and (oldest is None or waiters[0][0] < oldest.sequence_id):
            future = waiters.popleft()[1]
            if not future.done():
                future.set_result(None)
        self._on_progress()

    def keep_error(self, _: MessageId | None, error: SdkError | None) -> None:
        """Keep the error of a message without a callback for the next `flush`; an `OnSent`."""
        if self._unreported is None:
            self._unreported = error

    async def flush(self) -> None:
        """Wait until everything pending now has its receipt or its error.

        Raises:
            SdkError: the first error since the last flush of a message without a callback.
        """
        if len(self.pending):
            future: asyncio.Future[None] = self._loop.create_future()
            waiter = (self.pending.newest_sequence_id, future)
            self._flush_waiters.append(waiter)
            try:
                await future
            except asyncio.CancelledError:
                with suppress(ValueError):  # everything was settled in this very turn
                    self._flush_waiters.remove(waiter)
                raise
        error, self._unreported = self._unreported, None
        if error is not None:
            raise error

    # -- the send timeout

    def arm_timer(self) -> None:
        """Start the timer of the send timeout, after something was added."""
        if self._timer is None and self._timeout_ms and self.pending.oldest is not None:
            age_s = self._clock.monotonic_s() - self.pending.oldest.sent_at_s
            delay_s = max(0.0, self._timeout_ms / 1000 - age_s)
            self._timer = self._loop.call_later(delay_s, self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        before_s = self._clock.monotonic_s() - self._timeout_ms / 1000
        # By this clock a timer may fire slightly too early: a millisecond does not matter.
        expired = self.pending.take_older(before_s + 0.001)
        if expired:
            state = "connected" if self._is_connected() else "not connected"
            error = SendTimeoutError(
                f"{self._topic}: no receipt within {self._timeout_ms} ms ({state}); "
                "the message may or may not be stored"
            )
            self._fail(expired, error)
            self.after_progress()
        self.arm_timer()

    # -- internal

    def _fail(self, sends: list[PendingSend], error: SdkError) -> None:
        if self._fails_together:
            self._entry_failure = self._entry_failure or error
            sends += self.pending.take_older(float("inf"))
        for send in sends:
            self.refuse(send.messages, send.on_sent, error)


def tell(on_sent: OnSent, message_id: MessageId | None, error: SdkError | None) -> None:
    """Call an `OnSent`. An exception from the application's code is logged, because other callbacks
    wait."""
    try:
        on_sent(message_id, error)
    except Exception as failure:  # noqa: BLE001  # Any may come out of it.
        _log.warning("on_sent_failed %s: %r", on_sent, failure, exc_info=failure)
