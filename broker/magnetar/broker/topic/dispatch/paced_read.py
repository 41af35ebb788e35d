"""The read that a dispatcher has under way: one at a time, tried again after errors with pauses."""

import asyncio
from collections.abc import Callable, Coroutine

import structlog

from magnetar.broker.base.settings.broker import BrokerSettings
from magnetar.ledger.backoff import backoff
from magnetar.ledger.position import Position

_log = structlog.get_logger()


class PacedRead:
    """At most one read. After an error a pause that doubles from time to time; then `on_ready`.

    The read itself calls `done`, `fail` or `give_up` at its end, before it hands on what it got: by
    then another one may begin.
    """

    def __init__(
        self,
        settings: BrokerSettings,
        *,
        failure_event: str,
        label: str,
        on_ready: Callable[[], None],
    ) -> None:
        """`failure_event`: in the log, for each read that failed. `label`: of the subscription."""
        self._settings = settings
        self._failure_event = failure_event
        self._label = label
        self._on_ready = on_ready
        self._task: asyncio.Task[None] | None = None
        self._pause: asyncio.TimerHandle | None = None
        self._failures = 0
        self.unreadable: tuple[Position, str] | None = None
        """The first entry that the last read could not get, and why; None: it got what it could."""

    @property
    def is_busy(self) -> bool:
        """A read is under way, or will be tried again after a pause."""
        return self._task is not None or self._pause is not None

    def begin(self, read: Coroutine[object, object, None]) -> None:
        """Start a read; not while another one is under way, or waits."""
        assert not self.is_busy
        self._task = asyncio.get_running_loop().create_task(read)

    def done(self) -> None:
        """The read got what it could."""
        self._task = None
        self._failures = 0
        self.unreadable = None

    def give_up(self) -> None:
        """The read got nothing, and is not tried again: the topic is about to be closed."""
        self._task = None

    def fail(self, position: Position, error: Exception) -> None:
        """The read could not get the entry at this position: try again after a pause."""
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
        """Forget what is under way."""
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
