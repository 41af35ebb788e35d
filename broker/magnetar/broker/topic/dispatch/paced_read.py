"""The one running read of a dispatcher, with retries after pauses."""

import asyncio
from collections.abc import Callable, Coroutine

import structlog

from magnetar.broker.base.settings.broker import BrokerSettings
from magnetar.ledger.backoff import backoff
from magnetar.ledger.position import Position

_log = structlog.get_logger()


class PacedRead:
    """At most one read. After an error comes a pause, which doubles with each failure; then
    `on_ready`.

    The read itself calls `done`, `fail` or `give_up` at its end, before it passes its result on:
    another read may begin from there.
    """

    def __init__(
        self,
        settings: BrokerSettings,
        *,
        failure_event: str,
        label: str,
        on_ready: Callable[[], None],
    ) -> None:
        """`failure_event`: log event for each failed read. `label`: names the subscription in the
        log."""
        self._settings = settings
        self._failure_event = failure_event
        self._label = label
        self._on_ready = on_ready
        self._task: asyncio.Task[None] | None = None
        self._pause: asyncio.TimerHandle | None = None
        self._failures = 0
        self.unreadable: tuple[Position, str] | None = None
        """First entry that the last read could not get, and why; None if nothing failed."""

    @property
    def is_busy(self) -> bool:
        """Whether a read is running, or will be retried after a pause."""
        return self._task is not None or self._pause is not None

    def begin(self, read: Coroutine[object, object, None]) -> None:
        """Start a read; not allowed while one runs or waits for a retry."""
        assert not self.is_busy
        self._task = asyncio.get_running_loop().create_task(read)

    def done(self) -> None:
        """Note that the read succeeded."""
        self._task = None
        self._failures = 0
        self.unreadable = None

    def give_up(self) -> None:
        """Note that the read got nothing and is not retried: the topic is about to be closed."""
        self._task = None

    def fail(self, position: Position, error: Exception) -> None:
        """Note that the entry at this position could not be read, and retry after a pause."""
        self._task = None
        self._failures += 1
        settings = self._settings
        delay_ms = backoff(settings.read_retry_ms, self._failures, settings.read_retry_ms_max)
        self.unreadable = position, str(error)
        _log.warning(
            self._failure_event,
            subscription=self._label,
            ledger_id=position.ledger_id,
            entry_id=position.entry_id,
            error=str(error),
            retry_ms=round(delay_ms),
        )
        self._pause = asyncio.get_running_loop().call_later(delay_ms / 1000, self._on_pause_over)

    def stop(self) -> None:
        """Cancel the running read or the pause."""
        self._failures = 0
        self.unreadable = None
        if self._task is not None:
            self._task.cancel()
            self._task = None
        if self._pause is not None:
            self._pause.cancel()
            self._pause = None

    def _on_pause_over(self) -> None:
        self._pause = None
        self._on_ready()
