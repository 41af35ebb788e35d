"""A broker is well while it may serve and its heartbeat goes through in time."""

import asyncio
from collections.abc import Callable

from magnetar.broker.base.settings.broker import BrokerSettings
from magnetar.broker.cluster.health import BeatLog, BrokerHealth, Heartbeat
from magnetar.ledger.errors import LedgerError, LogClosedError
from magnetar.ledger.log import AppendBatch
from magnetar.ledger.metadata.store import SessionState
from magnetar.ledger.position import Position
from tests.unit.broker.memory_log import ManualClock


class _Log:
    """Keeps entries at once, later (`hold`), or not."""

    def __init__(self) -> None:
        self.entries: list[bytes] = []
        self.held: list[AppendBatch] = []
        self.holds = False
        self.error: LedgerError | None = None
        self.reads_wrong = False
        self.is_deleted = False
        self.shrunk: list[Position] = []

    def append(self, batch: AppendBatch) -> None:
        if self.error is not None:
            batch.on_failed(self.error)  # type: ignore[arg-type]
        elif self.holds:
            self.held.append(batch)
        else:
            self._keep(batch)

    def _keep(self, batch: AppendBatch) -> None:
        self.entries += batch.payloads
        batch.on_appended(1, len(self.entries) - 1)

    def release(self) -> None:
        self.holds = False
        for batch in self.held:
            self._keep(batch)
        self.held.clear()

    async def read_range(
        self, start: Position, *, entries_max: int, bytes_max: int
    ) -> tuple[Position, list[bytes]]:
        return start, [b"?" if self.reads_wrong else self.entries[start.entry_id]]

    async def shrink(self, before: Position) -> int:
        self.shrunk.append(before)
        return 0

    async def close(self) -> None: ...

    async def delete(self) -> None:
        self.is_deleted = True


_SHORT_MS = 300
"""For tests that wait for the end of a heartbeat's time. Others have all the time they need."""


class _World:
    def __init__(self, *, timeout_ms: int = 60_000) -> None:
        self.log = _Log()
        self.clock = ManualClock()
        self.status = "ok"
        self.session = SessionState.CONNECTED
        self.opened = 0
        self.may_open = asyncio.Event()
        self.may_open.set()
        self.health = BrokerHealth(
            Heartbeat(self._open),
            BrokerSettings(health_check_timeout_ms=timeout_ms, health_check_interval_ms=2_000),
            status=lambda: self.status,
            session=lambda: self.session,
            clock=self.clock,
        )

    async def _open(self) -> BeatLog:
        self.opened += 1
        await self.may_open.wait()
        return self.log

    async def look_later(self) -> str:
        """After the last outcome has grown old."""
        self.clock.advance(2_000)
        return await self.health.look()


async def test_a_heartbeat_that_goes_through_is_ok_and_is_asked_for_once_per_interval() -> None:
    world = _World()
    assert await asyncio.gather(*(world.health.look() for _ in range(5))) == ["ok"] * 5
    assert await world.health.look() == "ok"
    assert len(world.log.entries) == 1
    assert await world.look_later() == "ok"
    assert len(world.log.entries) == 2


async def test_what_keeps_the_broker_from_serving_is_said_without_a_heartbeat() -> None:
    world = _World()
    world.status = "no lease"
    assert await world.health.look() == "no lease"
    world.status, world.session = "ok", SessionState.EXPIRED
    assert await world.health.look() == "the metadata store does not answer"
    assert not world.opened


async def test_an_entry_that_is_not_stored_in_time_is_said_and_does_not_pile_up() -> None:
    world = _World(timeout_ms=_SHORT_MS)
    world.log.holds = True
    said = await world.health.look()
    assert said == f"the heartbeat is not done within {_SHORT_MS} ms: writing an entry"
    assert await world.look_later() == said
    assert len(world.log.held) == 1, "one entry waits, however often somebody asks"
    world.log.release()
    assert await world.look_later() == "ok"


async def test_a_log_that_takes_longer_to_open_than_anybody_waits_is_open_one_day() -> None:
    world = _World(timeout_ms=_SHORT_MS)
    world.may_open.clear()
    said = await world.health.look()
    assert said == f"the heartbeat is not done within {_SHORT_MS} ms: opening its log"
    assert await world.look_later() == said
    world.may_open.set()
    assert await world.look_later() == "ok"
    assert world.opened == 1, "what was begun goes on, whoever gives up meanwhile"


async def test_a_log_that_is_being_opened_ends_with_the_broker() -> None:
    world = _World(timeout_ms=_SHORT_MS)
    world.may_open.clear()
    await world.health.look()
    await world.health.close()
    assert not [each for each in asyncio.all_tasks() if each is not asyncio.current_task()]


async def test_what_cannot_be_written_or_read_is_said_in_words_until_it_can() -> None:
    world = _World()
    breaks: list[tuple[Callable[[], None], str]] = [
        (lambda: setattr(world.log, "error", LedgerError("no bookies")), "no bookies"),
        (lambda: setattr(world.log, "reads_wrong", True), "is not the heartbeat"),
    ]
    for break_it, words in breaks:
        break_it()
        said = await world.look_later()
        assert said.startswith("the heartbeat failed while")
        assert words in said
        world.log.error, world.log.reads_wrong = None, False
        assert await world.look_later() == "ok"
    assert world.opened == 1


async def test_a_log_that_somebody_else_took_is_opened_again() -> None:
    world = _World()
    world.log.error = LogClosedError("taken")
    assert "taken" in await world.health.look()
    world.log.error = None
    assert await world.look_later() == "ok"
    assert world.opened == 2


async def test_the_log_goes_with_an_orderly_end() -> None:
    world = _World()
    await world.health.close()
    assert not world.log.is_deleted
    await world.health.look()
    await world.health.close()
    assert world.log.is_deleted


async def test_an_unexpected_error_is_said_and_does_not_end_the_heartbeats() -> None:
    world = _World()
    world.log.error = KeyError("a defect")  # type: ignore[assignment]
    said = await world.health.look()
    assert said == "the heartbeat failed while writing an entry: KeyError('a defect')"
    world.log.error = None
    assert await world.look_later() == "ok"
