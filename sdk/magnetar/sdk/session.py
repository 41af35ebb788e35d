"""Sessions: how a producer or consumer reaches its broker, and returns to it after a loss.

A `Session` runs one task for the life of its user. The task finds the broker, attaches (PRODUCER or
SUBSCRIBE), waits until the broker or the connection drops it, and begins again with growing pauses.
Before the first attachment, an error that no retry can help, or the operation timeout, ends the
session. Later only the errors that the protocol calls final do.
"""

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable

from magnetar.sdk.backoff import Backoff
from magnetar.sdk.connection import Connection
from magnetar.sdk.errors import AlreadyClosedError, OperationTimeoutError, SdkError
from magnetar.sdk.ports import Clock
from magnetar.sdk.settings import ClientSettings
from magnetar.sdk.wire.errors import ProducerFencedError, TopicTerminatedError

_log = logging.getLogger("magnetar.sdk")

_QUICK_LOSS_S = 1.0
_QUICK_LOSSES_MAX = 3

FINAL_ERRORS = (ProducerFencedError, TopicTerminatedError, AlreadyClosedError)
"""Errors that end a session after its first attachment: no broker will answer otherwise later, or
the client asks none again."""


def until(deadline_s: float, pause_s: float, clock: Clock) -> float:
    """Return the pause, shortened so that the last attempt is made at the deadline."""
    return max(0.0, min(pause_s, deadline_s - clock.monotonic_s()))


class Session:
    """Keeps one producer or consumer attached to its broker.

    `start` waits for the first attachment; `close` detaches, and ends the task.
    """

    def __init__(
        self,
        name: str,
        *,
        find: Callable[[], Awaitable[Connection]],
        attach: Callable[[Connection], Awaitable[None]],
        detach: Callable[[], Awaitable[None]],
        on_failed: Callable[[SdkError], None],
        settings: ClientSettings,
        clock: Clock,
        random: random.Random,
        gives_up: bool = True,
    ) -> None:
        """Take the steps of a session.

        `attach` does the whole exchange with the broker. `detach` undoes it, and does nothing if
        there is nothing to undo. `on_failed` is called when the session ends for good. `gives_up`:
        whether the first attachment must succeed within the operation timeout.
        """
        self._gives_up = gives_up
        self._name = name
        self._find, self._attach, self._detach = find, attach, detach
        self._on_failed = on_failed
        self._clock = clock
        self._settings = settings
        self._backoff = Backoff(
            min_s=settings.reconnect_delay_min_ms / 1000,
            max_s=settings.reconnect_delay_max_ms / 1000,
            random=random,
        )
        self.connection: Connection | None = None
        """The connection that the session is attached to, or attaches to; None if there is none."""
        self.failure: SdkError | None = None
        """Why the session is over; None while it lives."""
        self.attachments = 0
        """Number of attachments so far."""
        self._quick_losses = 0
        self._lost = asyncio.Event()
        # In the order of waiting: the order of waking must not depend on memory addresses.
        self._changed: dict[asyncio.Future[None], None] = {}
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Attach for the first time. A cancelled call leaves nothing at the broker.

        Raises:
            SdkError: the reason why the session could not attach.
        """
        self._task = asyncio.create_task(self._run(), name=f"magnetar {self._name}")
        self._task.add_done_callback(self._on_task_done)
        try:
            await self.wait_attached(0)
        except BaseException:
            # The task may have attached in the very turn in which this call was cancelled.
            await self.close()
            raise

    async def wait_attached(self, attachments: int) -> None:
        """Wait until the session is attached, for more than `attachments` times in all.

        Raises:
            SdkError: the session is over.
        """
        while self.failure is None and (self.attachments <= attachments or self.connection is None):
            future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._changed[future] = None
            try:
                await future
            finally:
                self._changed.pop(future, None)
        if self.failure is not None:
            raise self.failure

    def expect_loss(self) -> None:
        """Announce a loss that the user itself causes (by a seek), so that it does not count as
        quick."""
        self._quick_losses = 0

    def lose(self, connection: Connection | None = None) -> None:
        """Handle the loss of `connection` (of any, if None): attach again."""
        if connection is None or connection is self.connection:
            self.connection = None
            self._lost.set()

    async def close(self) -> None:
        """End the task, and detach at the broker."""
        if self.failure is None:
            self.failure = AlreadyClosedError(f"{self._name} is closed")
        self._wake()
        task, self._task = self._task, None
        try:
            # Before the detachment: the task must not attach again while that waits for an answer.
            if task is not None and task is not asyncio.current_task():
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
        finally:
            await self._detach()
            self.connection = None

    async def _run(self) -> None:
        deadline_s = self._clock.monotonic_s() + self._settings.operation_timeout_ms / 1000
        while self.failure is None:
            self._lost.clear()
            try:
                connection = await self._find()
                # Set before the answer, so that a loss during the attachment is noticed.
                self.connection = connection
                await self._attach(connection)
            except SdkError as error:
                self.connection = None
                if self._is_over(error, deadline_s):
                    return
                await self._pause(None if self.attachments else deadline_s)
                continue
            if self.connection is connection:
                self.attachments += 1
                self._wake()
            attached_at_s = self._clock.monotonic_s()
            await self._lost.wait()
            await self._after_loss(self._clock.monotonic_s() - attached_at_s)

    async def _after_loss(self, attached_s: float) -> None:
        """Attach again at once after a long attachment or a single loss; pause after several quick
        losses."""
        self._quick_losses = self._quick_losses + 1 if attached_s < _QUICK_LOSS_S else 0
        if self._quick_losses > _QUICK_LOSSES_MAX:
            await self._pause()
        else:
            self._backoff.reset()

    def _on_task_done(self, task: asyncio.Task[None]) -> None:
        """Report a defect in the client to the user, which would otherwise wait for ever."""
        defect = None if task.cancelled() else task.exception()
        if defect is not None and self.failure is None:
            self.failure = SdkError(f"{self._name}: defect in the client: {defect!r}")
            self.failure.__cause__ = defect
            self._on_failed(self.failure)
            self._wake()

    def _is_over(self, error: SdkError, deadline_s: float) -> bool:
        if self.attachments:
            over = isinstance(error, FINAL_ERRORS)
        else:
            over = not error.retryable
            if not over and self._gives_up and self._clock.monotonic_s() >= deadline_s:
                over = True
                cause = error
                error = OperationTimeoutError(
                    f"{self._name}: not ready within {self._settings.operation_timeout_ms} ms; "
                    f"last: {cause}"
                )
                error.__cause__ = cause
        if not over:
            _log.info("session_retry %s: %s", self._name, error)
            return False
        self.failure = error
        self._on_failed(error)
        self._wake()
        return True

    async def _pause(self, deadline_s: float | None = None) -> None:
        pause_s = self._backoff.next_s()
        if deadline_s is not None and self._gives_up:
            pause_s = until(deadline_s, pause_s, self._clock)
        self._lost.clear()
        try:
            async with asyncio.timeout(pause_s):
                await self._lost.wait()
        except TimeoutError:
            pass  # the usual end of a pause

    def _wake(self) -> None:
        for future in self._changed:
            if not future.done():
                future.set_result(None)
