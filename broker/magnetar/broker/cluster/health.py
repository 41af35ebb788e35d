"""The answer of `/health`: `ok`, or the reason why the broker is not well.

Whether the broker may serve is known at once. Whether it can write and read is determined on
request, by one heartbeat for all requests within a short time, and within a time limit. Without
requests, the broker does nothing for this.

The heartbeat is an entry that is written to a log of the broker's own and read back. It takes the
path of every message: the metadata store for the log's ledger, an ack quorum of bookies for the
entry, one of them for reading it. The log belongs to the broker's name, so a later broker of that
name continues with it. It is deleted at an orderly end. No topic is involved, so it needs no lease,
and no policies apply to it.
"""

import asyncio
import random
from collections.abc import Callable, Sequence
from typing import Protocol
from urllib.parse import quote

import structlog

from magnetar.broker.base.settings.broker import BrokerSettings
from magnetar.ledger.client import LedgerClient
from magnetar.ledger.errors import LedgerError, LogClosedError, LogFencedError
from magnetar.ledger.log import AppendBatch, ManagedLog
from magnetar.ledger.metadata.store import MetadataStore, SessionState
from magnetar.ledger.ports import Clock
from magnetar.ledger.position import Position
from magnetar.ledger.settings import LogConfig

_log = structlog.get_logger()

OK = "ok"

ROOT = "/managed-ledgers/magnetar/heartbeats/persistent"
"""Parent of the heartbeat logs, one by the name of each broker whose health was requested."""

_BEATS_PER_LEDGER = 1_000


class BeatLog(Protocol):
    """The part of a log that a heartbeat needs; `ManagedLog` implements it."""

    def append(self, batch: AppendBatch, /) -> None: ...

    async def read_range(
        self, start: Position, *, entries_max: int, bytes_max: int
    ) -> tuple[Position, list[bytes]]: ...

    async def shrink(self, before: Position, /) -> int: ...

    async def close(self) -> None: ...

    async def delete(self) -> None: ...


class OpenLog(Protocol):
    """Opens the broker's log, or creates it."""

    async def __call__(self) -> BeatLog:
        """Open the log.

        Raises:
            LedgerError
        """
        ...


class _Beat:
    """One pending entry; `done` has its position, or why it is not stored."""

    def __init__(self, payload: bytes) -> None:
        self.payloads: Sequence[bytes] = (payload,)
        self.done: asyncio.Future[Position] = asyncio.get_running_loop().create_future()
        self.done.add_done_callback(lambda done: done.exception())  # there may be no waiter

    def on_appended(self, ledger_id: int, first_entry_id: int) -> None:
        if not self.done.done():
            self.done.set_result(Position(ledger_id, first_entry_id))

    def on_failed(self, error: LedgerError) -> None:
        if not self.done.done():
            self.done.set_exception(error)


class Heartbeat:
    """The heartbeat of one broker; one `beat` at a time."""

    def __init__(self, open_log: OpenLog) -> None:
        self._open = open_log
        self._log: BeatLog | None = None
        self._opening: asyncio.Task[BeatLog] | None = None
        self._under_way: _Beat | None = None
        self._count = 0
        self.doing = ""
        """What the present beat waits for, in words."""

    async def beat(self) -> None:
        """Write an entry, and read it back. It has no time limit of its own; the caller sets one.

        It first waits for what an earlier call gave up: the opening of the log, and an entry. So
        however many requests come while the bookies are away, at most one entry waits for them.

        Raises:
            LedgerError: it could not be written or read, or what was read is something else.
        """
        try:
            position, payload = await self._write()
            self.doing = "reading it back"
            assert self._log is not None
            _, found = await self._log.read_range(position, entries_max=1, bytes_max=1 << 16)
            if found != [payload]:
                raise LedgerError(f"at {position} is not the heartbeat that was written there")
            if self._count % _BEATS_PER_LEDGER == 0:
                await self._log.shrink(position)
        except (LogFencedError, LogClosedError):
            await self._forget()  # The next beat takes the log over again.
            raise

    async def _write(self) -> tuple[Position, bytes]:
        self.doing = "opening its log"
        if self._log is None:
            if self._opening is None:
                # A caller that gives up must not cancel it: an opening that takes longer would
                # never succeed.
                self._opening = asyncio.create_task(self._open(), name="heartbeat-log")
                self._opening.add_done_callback(lambda done: done.cancelled() or done.exception())
            await asyncio.wait([self._opening])
            opening, self._opening = self._opening, None
            self._log = opening.result()
        self.doing = "writing an entry"
        beat = self._under_way
        if beat is None:
            self._count += 1
            beat = self._under_way = _Beat(b"heartbeat %d" % self._count)
            self._log.append(beat)
        # A caller that gives up must not drop the entry: the log will answer it.
        await asyncio.wait([beat.done])
        self._under_way = None
        return beat.done.result(), beat.payloads[0]

    async def _forget(self) -> None:
        log, self._log, self._under_way = self._log, None, None
        if log is not None:
            await log.close()

    @property
    def is_open(self) -> bool:
        """Whether there is a log, or may be soon."""
        return self._log is not None or self._opening is not None

    async def close(self) -> None:
        """Delete the log; if that fails, it stays for the next broker of that name."""
        if self._opening is not None:
            self._opening.cancel()
            await asyncio.wait([self._opening])
            if not self._opening.cancelled() and self._opening.exception() is None:
                self._log = self._opening.result()
            self._opening = None
        log, self._log, self._under_way = self._log, None, None
        if log is not None:
            try:
                await log.delete()
            except LedgerError as error:
                _log.info("heartbeat_log_left", error=str(error))


def open_heartbeat_log(
    client: LedgerClient,
    store: MetadataStore,
    *,
    broker: Callable[[], str],
    quorums: tuple[int, int, int],
    clock: Clock,
    random: random.Random,
) -> OpenLog:
    """Return a function that opens the log of a broker. `broker` returns its name, known once it
    listens. `quorums`: ensemble, write, ack."""
    ensemble_size, write_quorum, ack_quorum = quorums
    config = LogConfig(
        ensemble_size=ensemble_size,
        write_quorum=write_quorum,
        ack_quorum=ack_quorum,
        ledger_entries_max=_BEATS_PER_LEDGER,
        opens_without_ledger=True,
        unavailable_retry_s=0.5,
    )

    async def open_log() -> BeatLog:
        path = f"{ROOT}/{quote(broker(), safe='')}"
        return await ManagedLog.open(client, store, path, config, clock=clock, random=random)

    return open_log


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
        """`status` returns `ok` while clients are served, else the reason why they are not."""
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
        """Return `ok`, or why not. Takes no longer than `health_check_timeout_ms`."""
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
        try:
            outcome = await self._try_beat()
            if outcome != OK and self._outcome == OK:
                _log.warning("broker_unwell", reason=outcome)
            elif outcome == OK and self._outcome != OK:
                _log.info("broker_well_again", reason=self._outcome)
            self._outcome, self._beaten_at_s = outcome, self._clock.monotonic_s()
            return outcome
        finally:
            self._beating = None

    async def _try_beat(self) -> str:
        heartbeat = self._heartbeat
        try:
            async with asyncio.timeout(self._timeout_s):
                await heartbeat.beat()
        except TimeoutError:
            milliseconds = round(self._timeout_s * 1000)
            return f"the heartbeat is not done within {milliseconds} ms: {heartbeat.doing}"
        except LedgerError as error:
            return f"the heartbeat failed while {heartbeat.doing}: {error}"
        except Exception as error:  # noqa: BLE001 - a defect must not end all further heartbeats
            _log.exception("heartbeat_broke")
            return f"the heartbeat failed while {heartbeat.doing}: {error!r}"
        return OK

    async def close(self) -> None:
        """Stop, and delete the heartbeat's log, within the time limit."""
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
