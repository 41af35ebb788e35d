"""What `/health` answers: `ok`, or in words why the broker is not well.

Whether it may serve is known at once. Whether it can write and read is found out when somebody
asks, by one heartbeat for all who ask within a short time, and within a bound: a broker that nobody
asks does nothing for this.
"""

import asyncio
from collections.abc import Callable

import structlog

from magnetar.broker.base.settings.broker import BrokerSettings
from magnetar.broker.cluster.health.heartbeat import Heartbeat
from magnetar.ledger.errors import LedgerError
from magnetar.ledger.metadata.store import SessionState
from magnetar.ledger.ports import Clock

_log = structlog.get_logger()

OK = "ok"


class BrokerHealth:
    """The health of one broker."""

    def __init__(
        self,
        heartbeat: Heartbeat,
        settings: BrokerSettings,
        *,
        status: Callable[[], str],
        session: Callable[[], SessionState],
        clock: Clock,
    ) -> None:
        """`status`: `ok` while clients are served, else what keeps the broker from that."""
        self._heartbeat = heartbeat
        self._timeout_s = settings.health_check_timeout_ms / 1000
        self._interval_s = settings.health_check_interval_ms / 1000
        self._status = status
        self._session = session
        self._clock = clock
        self._beating: asyncio.Task[str] | None = None
        self._outcome = OK
        self._beaten_at_s: float | None = None

    async def look(self) -> str:
        """`ok`, or why not. Takes no longer than `health_check_timeout_ms`."""
        status = self._status()
        if status != OK:
            return status
        if self._session() is not SessionState.CONNECTED:
            return "the metadata store does not answer"
        if self._beating is None:
            since_s = self._clock.monotonic_s() - (self._beaten_at_s or 0.0)
            if self._beaten_at_s is not None and since_s < self._interval_s:
                return self._outcome
            self._beating = asyncio.create_task(self._beat(), name="heartbeat")
        return await asyncio.shield(self._beating)

    async def _beat(self) -> str:
        outcome = OK
        heartbeat = self._heartbeat
        try:
            async with asyncio.timeout(self._timeout_s):
                await heartbeat.beat()
        except TimeoutError:
            milliseconds = round(self._timeout_s * 1000)
            outcome = f"the heartbeat is not done within {milliseconds} ms: {heartbeat.doing}"
        except LedgerError as error:
            outcome = f"the heartbeat failed while {heartbeat.doing}: {error}"
        if outcome != OK and self._outcome == OK:
            _log.warning("broker_unwell", reason=outcome)
        elif outcome == OK and self._outcome != OK:
            _log.info("broker_well_again", reason=self._outcome)
        self._outcome, self._beaten_at_s = outcome, self._clock.monotonic_s()
        self._beating = None
        return outcome

    async def close(self) -> None:
        """End, and take the heartbeat's log away, within the bound."""
        if self._beating is not None:
            self._beating.cancel()
            await asyncio.gather(self._beating, return_exceptions=True)
            self._beating = None
        if not self._heartbeat.is_open:
            return
        try:
            async with asyncio.timeout(self._timeout_s):
                await self._heartbeat.close()
        except TimeoutError:
            _log.info("heartbeat_log_left", error="its deletion took too long")
