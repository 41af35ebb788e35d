"""A coordinator on its log: what is durable when, and what the next owner carries out."""

import asyncio
import json
from collections.abc import Callable
from functools import partial
from typing import Any, cast

import pytest

from magnetar.broker.base.settings.broker import BrokerSettings
from magnetar.broker.base.turn_gate import TASKS_PER_TURN
from magnetar.broker.features.transactions import coordinator as coordinator_module
from magnetar.broker.features.transactions.coordinator import Coordinator
from magnetar.broker.features.transactions.coordinator_state import Status
from magnetar.broker.features.transactions.errors import (
    CoordinatorNotFoundError,
    InvalidTransactionStatusError,
    TransactionNotFoundError,
)
from magnetar.broker.features.transactions.ids import TransactionId
from magnetar.broker.features.transactions.topic_log import Record
from magnetar.broker.topic import Topic
from magnetar.ledger.errors import LedgerWriteError, LogFencedError, MessageTooLargeError
from magnetar.ledger.ports import Clock
from magnetar.ledger.position import Position
from magnetar.ledger.system import SystemClock
from tests.waiting import settle, until

YEAR_MS = 365 * 24 * 3_600_000
SETTINGS = BrokerSettings(
    transaction_open_max=5,
    transaction_timeout_max_ms=60_000,
    transaction_participants_max=3,
    transaction_finished_max=100,
    transaction_log_records=1000,
    transaction_end_wait_ms=30_000,
)
WIDE = SETTINGS.model_copy(update={"transaction_open_max": 300})


class Log:
    """A topic's log in memory, which survives its owners."""

    def __init__(self) -> None:
        self.entries: list[bytes] = []

    @property
    def last_confirmed(self) -> Position:
        return Position(1, len(self.entries) - 1)

    def first_position(self) -> Position:
        return Position(1, 0)

    def next_position(self, position: Position) -> Position:
        return Position(1, position.entry_id + 1)

    async def read_range(
        self, start: Position, *, entries_max: int, bytes_max: int
    ) -> tuple[Position, list[bytes]]:
        return start, self.entries[start.entry_id :]


class Place:
    """The topic of a coordinator, as one owner has it. `dies_before`: what is not stored."""

    def __init__(self, log: Log, dies_before: Callable[[bytes], bool] = lambda _: False) -> None:
        self.log = log
        self.is_closed = False
        self.reloads: list[str] = []
        self.tenure = self
        self._dies_before = dies_before

    def holds(self) -> bool:
        return not self.is_closed

    def append(self, record: Record) -> None:
        first = len(self.log.entries)
        for payload in record.payloads:
            if self.is_closed or self._dies_before(payload):
                self.is_closed = True
                record.on_failed(LogFencedError("the owner is dead"))
                return
            self.log.entries.append(payload)
        asyncio.get_running_loop().call_soon(record.on_appended, 1, first)

    def reload(self, reason: str) -> None:
        self.reloads.append(reason)


class Told:
    """Participants that remember what they are told, and answer when they may."""

    def __init__(self, *, answers: bool = True) -> None:
        self.ends: list[tuple[Any, ...]] = []
        self._may_answer = asyncio.Event()
        if answers:
            self._may_answer.set()

    async def end_on_topic(
        self, topic: str, txn: TransactionId, *, commits: bool, low_watermark: int
    ) -> None:
        self.ends.append((topic, txn, commits))
        await self._may_answer.wait()

    async def end_on_subscription(
        self, topic: str, name: str, txn: TransactionId, *, commits: bool, low_watermark: int
    ) -> None:
        self.ends.append((topic, name, txn, commits))
        await self._may_answer.wait()


async def owner(
    log: Log,
    told: Told,
    dies_before: Callable[[bytes], bool] = lambda _: False,
    settings: BrokerSettings = SETTINGS,
    clock: Clock | None = None,
) -> Coordinator:
    place = Place(log, dies_before)
    coordinator = Coordinator(2, cast(Topic, place), told, settings, clock or SystemClock())
    await coordinator.restore()
    return coordinator


async def test_everybody_who_joined_is_told_of_the_decision() -> None:
    log, told = Log(), Told()
    coordinator = await owner(log, told)
    txn = await coordinator.begin(10_000)
    await coordinator.join(txn, ["a", "b"])
    await coordinator.join(txn, (), [("a", "s")])
    await coordinator.end(txn, commits=True)
    assert sorted(map(str, told.ends)) == sorted(
        map(str, [("a", txn, True), ("b", txn, True), ("a", "s", txn, True)])
    )
    await coordinator.end(txn, commits=True)
    with pytest.raises(InvalidTransactionStatusError):
        await coordinator.end(txn, commits=False)
    assert len(told.ends) == 3
    coordinator.close()


@pytest.mark.parametrize("commits", [True, False])
async def test_a_decision_whose_owner_died_is_carried_out_by_the_next(commits: bool) -> None:
    log, told = Log(), Told(answers=False)
    first = await owner(log, told)
    txn = await first.begin(10_000)
    await first.join(txn, ["a"])
    ending = asyncio.create_task(first.end(txn, commits=commits))
    await until(lambda: len(told.ends) == 1)
    cast(Any, first)._topic.is_closed = True
    first.close()
    await asyncio.gather(ending, return_exceptions=True)
    told_again = Told()
    second = await owner(log, told_again)
    await until(lambda: told_again.ends == [("a", txn, commits)])
    await second.end(txn, commits=commits)
    second.close()


async def test_nothing_is_told_before_the_decision_is_durable() -> None:
    log, told = Log(), Told()
    first = await owner(log, told, lambda payload: b"committing" in payload)
    txn = await first.begin(10_000)
    await first.join(txn, ["a"])
    with pytest.raises(Exception, match="dead"):
        await first.end(txn, commits=True)
    await settle()  # whoever was set to work has its turn
    assert told.ends == []
    first.close()
    second = await owner(log, told)
    await second.end(txn, commits=False)
    assert told.ends == [("a", txn, False)]
    second.close()


async def test_an_end_that_was_carried_out_and_not_noted_is_told_once_more() -> None:
    log, told = Log(), Told()
    first = await owner(log, told, lambda payload: b'"committed"' in payload)
    txn = await first.begin(10_000)
    await first.join(txn, ["a"])
    with pytest.raises(CoordinatorNotFoundError):
        await first.end(txn, commits=True)
    first.close()
    second = await owner(log, told)
    await until(lambda: told.ends == [("a", txn, True)] * 2)
    second.close()


async def test_a_number_that_may_have_been_given_out_is_not_given_out_again() -> None:
    log = Log()
    first = await owner(log, Told())
    numbers = [(await first.begin(10_000)).least for _ in range(3)]
    first.close()
    second = await owner(log, Told())
    assert (await second.begin(10_000)).least == max(numbers) + 1
    second.close()


class HandClock(SystemClock):
    """A clock whose wall clock may be ahead; the other one stands until it is moved."""

    def __init__(self, *, ahead_ms: int = 0) -> None:
        self.ahead_ms = ahead_ms
        self.now_s = 0.0

    def monotonic_s(self) -> float:
        return self.now_s

    def wall_ms(self) -> int:
        return super().wall_ms() + self.ahead_ms


async def test_one_whose_time_is_over_is_aborted_also_by_the_next_owner() -> None:
    log, told = Log(), Told()
    first = await owner(log, told, clock=HandClock())
    txn = await first.begin(30)
    await first.join(txn, ["a"])
    cast(Any, first)._topic.is_closed = True
    first.close()
    second = await owner(log, told)
    await until(lambda: told.ends == [("a", txn, False)])
    with pytest.raises(InvalidTransactionStatusError):
        await second.end(txn, commits=True)
    assert second.counters.timed_out == 1
    second.close()


async def test_a_wall_clock_that_is_set_back_lets_no_transaction_stay_open() -> None:
    """An open transaction would hold back every reader of its topics for a year."""
    log, told, clock = Log(), Told(), HandClock(ahead_ms=YEAR_MS)
    coordinator = await owner(log, told, clock=clock)
    txn = await coordinator.begin(30)
    await coordinator.join(txn, ["a"])
    clock.ahead_ms = 0
    clock.now_s += 0.03
    await until(lambda: told.ends == [("a", txn, False)])
    coordinator.close()


async def test_deadlines_of_ended_transactions_are_not_kept_for_hours(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(coordinator_module, "_ENDED_DEADLINES_MAX", 10)
    log, told, clock = Log(), Told(), HandClock()
    coordinator = await owner(log, told, clock=clock)
    late = await coordinator.begin(30_000)
    await coordinator.join(late, ["late"])
    for _ in range(100):
        await coordinator.end(await coordinator.begin(60_000), commits=True)
        assert len(coordinator._deadlines) <= 2 * 2 + 10 + 1  # two are open at most
    # The one that is open is still aborted in time, and so is the last one.
    last = await coordinator.begin(60_000)
    await coordinator.join(last, ["last"])
    for topic, txn in (("late", late), ("last", last)):
        clock.now_s += 30
        coordinator._on_timer()
        end = (topic, txn, False)
        await until(partial(told.ends.__contains__, end))
    coordinator.close()


@pytest.mark.parametrize("turns", [0, 1])
async def test_a_commit_that_comes_right_after_the_timer_is_not_aborted(turns: int) -> None:
    log, told, clock = Log(), Told(), HandClock()
    coordinator = await owner(log, told, clock=clock)
    txn = await coordinator.begin(10_000)
    await coordinator.join(txn, ["a"])
    clock.now_s += 10
    coordinator._on_timer()
    for _ in range(turns):
        await asyncio.sleep(0)
    await coordinator.end(txn, commits=True)
    await until(lambda: not coordinator._tasks, "the timeouts are dealt with")
    assert statuses_in(log) == ["committing", "committed"]
    assert coordinator.counters.timed_out == 0
    coordinator.close()


async def test_a_begin_does_not_start_further_timeouts_while_some_are_decided() -> None:
    class Stuck(Place):
        def append(self, record: Record) -> None:
            if b"aborting" in record.payloads[0]:
                self.log.entries.append(record.payloads[0])  # and it is never durable
            else:
                super().append(record)

    log, clock = Log(), HandClock()
    coordinator = Coordinator(2, cast(Topic, Stuck(log)), Told(), WIDE, clock)
    for _ in range(60):
        await coordinator.begin(10_000)
    clock.now_s += 10
    coordinator._on_timer()
    await coordinator.begin(10_000)
    await settle()
    assert statuses_in(log) == ["aborting"] * 50
    coordinator.close()


def statuses_in(log: Log) -> list[str]:
    return [record["status"] for record in map(json.loads, log.entries) if "status" in record]


async def test_what_was_begun_by_a_clock_ahead_has_its_timeout_at_the_next_owner() -> None:
    log, told = Log(), Told()
    first = await owner(log, told, clock=HandClock(ahead_ms=YEAR_MS))
    txn = await first.begin(30)
    await first.join(txn, ["a"])
    cast(Any, first)._topic.is_closed = True
    first.close()
    second = await owner(log, told)
    await until(lambda: told.ends == [("a", txn, False)])
    second.close()


async def test_limits_hold_at_their_value_and_not_beyond() -> None:
    coordinator = await owner(Log(), Told())
    with pytest.raises(Exception, match="60001"):
        await coordinator.begin(60_001)
    txns = [await coordinator.begin(60_000) for _ in range(5)]
    with pytest.raises(Exception, match="limit"):
        await coordinator.begin(60_000)
    await coordinator.join(txns[0], ["a", "b"], [("a", "s")])
    with pytest.raises(Exception, match="limit"):
        await coordinator.join(txns[0], ["c"])
    with pytest.raises(TransactionNotFoundError):
        await coordinator.join(TransactionId(2, 99), ["a"])
    coordinator.close()


async def test_records_before_a_snapshot_are_not_needed() -> None:
    log, told = Log(), Told()
    first = await owner(log, told)
    done = await first.begin(10_000)
    await first.end(done, commits=True)
    txn = await first.begin(10_000)
    await first.join(txn, ["a"])
    cast(Any, first)._append_snapshot()
    await asyncio.sleep(0)
    first.close()
    # As after a trim: the records that began the transaction are gone, one that joined is not.
    log.entries = log.entries[-2:]
    second = await owner(log, told)
    assert list(second.state.transactions) == [txn.least]
    await second.end(txn, commits=True)
    await second.end(done, commits=True)
    second.close()


class Rotating(Log):
    rotations = 0

    async def rotate(self) -> None:
        self.rotations += 1

    async def unlist(self, before: Position) -> None: ...

    async def delete_unlisted(self) -> None: ...


class Forgetting(Place):
    """Stores no snapshot while it `refuses`."""

    refuses = True

    def append(self, record: Record) -> None:
        if self.refuses and b"snapshot" in record.payloads[0]:
            record.on_failed(LedgerWriteError("no bookies"))
        else:
            super().append(record)


SNAPSHOT_SOON = SETTINGS.model_copy(update={"transaction_log_records": 3})


async def test_a_snapshot_that_is_not_stored_is_written_again_after_the_next_record(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(coordinator_module, "_SNAPSHOT_RETRY_S", 0.0)
    log = Rotating()
    place = Forgetting(log)
    coordinator = Coordinator(2, cast(Topic, place), Told(), SNAPSHOT_SOON, HandClock())
    for rotations in (0, 0, 1, 2):
        await coordinator.begin(10_000)
        await until(lambda: coordinator._compacting is None)
        assert log.rotations == rotations
    place.refuses = False
    await coordinator.begin(10_000)
    await until(lambda: coordinator._compacting is None)
    assert json.loads(log.entries[-1])["kind"] == "snapshot"
    assert coordinator._records == 0
    coordinator.close()


async def test_a_snapshot_that_is_not_stored_is_not_tried_with_each_record() -> None:
    """Each attempt begins a ledger."""
    log = Rotating()
    coordinator = Coordinator(2, cast(Topic, Forgetting(log)), Told(), SNAPSHOT_SOON, HandClock())
    for _ in range(5):
        await coordinator.begin(10_000)
        await settle()
    assert log.rotations == 1
    coordinator.close()


SMALL_ENTRIES = SETTINGS.model_copy(
    update={
        "transaction_log_records": 7,
        "message_bytes_max": 1024,
        "transaction_snapshot_bytes_max": 2048,
    }
)


class Narrow(Place):
    """Takes no entry above the bound, as a log does."""

    def append(self, record: Record) -> None:
        if max(map(len, record.payloads)) > SMALL_ENTRIES.message_bytes_max:
            record.on_failed(MessageTooLargeError("the entry is too large"))
        else:
            super().append(record)


def narrow_owner(place: Place) -> Coordinator:
    return Coordinator(2, cast(Topic, place), Told(), SMALL_ENTRIES, HandClock())


async def fill(coordinator: Coordinator) -> None:
    """Write 7 records, and a snapshot that does not fit into an entry."""
    for number in range(3):
        txn = await coordinator.begin(10_000)
        await coordinator.join(txn, [f'"{number}" {at}'.ljust(100, '"') for at in range(3)])
    await coordinator.begin(10_000)
    await until(lambda: coordinator._compacting is None)


async def test_a_snapshot_that_does_not_fit_into_an_entry_is_stored_in_several(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(coordinator_module, "_SNAPSHOT_RETRY_S", 0.0)
    log = Rotating()
    first = narrow_owner(Narrow(log))
    await fill(first)
    assert first._records == 0
    kinds = [json.loads(each)["kind"] for each in log.entries]
    assert kinds[7:] == ["part"] * (len(kinds) - 7)
    del log.entries[:7]  # as a trim does
    second = await owner(log, Told())
    assert second.state.snapshot_text() == first.state.snapshot_text()
    first.close()
    second.close()


async def test_a_snapshot_that_fits_into_an_entry_is_one_that_older_releases_read() -> None:
    log = Rotating()
    place = Narrow(log)
    settings = SMALL_ENTRIES.model_copy(update={"transaction_log_records": 2})
    coordinator = Coordinator(2, cast(Topic, place), Told(), settings, HandClock())
    await coordinator.begin(10_000)
    await coordinator.begin(10_000)
    await until(lambda: coordinator._compacting is None)
    assert json.loads(log.entries[-1])["kind"] == "snapshot"
    coordinator.close()


async def test_a_snapshot_of_which_only_some_parts_are_stored_counts_for_nothing() -> None:
    log = Rotating()
    first = narrow_owner(Place(log, lambda payload: b'"at": 1' in payload))
    with pytest.raises(CoordinatorNotFoundError):
        await fill(first)
    assert len(log.entries) == 8
    assert json.loads(log.entries[-1])["at"] == 0
    second = await owner(log, Told())
    assert second.state.snapshot_text() == first.state.snapshot_text()
    first.close()
    second.close()


async def ended(coordinator: Coordinator) -> None:
    """Close it, and wait until nothing of it is under way."""
    coordinator.close()
    await until(lambda: not coordinator._endings, "nothing is being told any more")


class Turns(Told):
    """Participants that never answer, and count how many are told in one turn of the loop."""

    def __init__(self) -> None:
        super().__init__(answers=False)
        self._now = 0
        self.most = 0

    async def end_on_topic(
        self, topic: str, txn: TransactionId, *, commits: bool, low_watermark: int
    ) -> None:
        if not self._now:
            asyncio.get_running_loop().call_soon(self._next_turn)
        self._now += 1
        self.most = max(self.most, self._now)
        await super().end_on_topic(topic, txn, commits=commits, low_watermark=low_watermark)

    def _next_turn(self) -> None:
        self._now = 0


async def test_many_that_time_out_are_aborted_some_at_a_time_though_nobody_answers() -> None:
    log, told = Log(), Turns()
    coordinator = await owner(log, told, settings=WIDE)
    for number in range(300):
        txn = await coordinator.begin(100)
        await coordinator.join(txn, [f"t{number}"])
    await until(lambda: len(told.ends) == 300, "all are told")
    assert told.most <= 2 * TASKS_PER_TURN
    assert {commits for _, _, commits in told.ends} == {False}
    await ended(coordinator)


async def test_a_restart_tells_what_was_decided_some_at_a_time() -> None:
    log = Log()
    first = await owner(log, Told(answers=False), settings=WIDE)
    for number in range(100):
        txn = await first.begin(60_000)
        await first.join(txn, [f"t{number}"])
        record = first.state.status(txn, Status.COMMITTING)
        await first._durable(first._write(record))
    first.close()
    told = Turns()
    second = await owner(log, told, settings=WIDE)
    await until(lambda: len(told.ends) == 100, "all are told")
    assert told.most <= 2 * TASKS_PER_TURN
    await ended(second)


async def test_an_end_that_is_cancelled_as_a_whole_is_carried_out_by_the_next_load() -> None:
    log = Log()
    coordinator = await owner(log, Told(answers=False))
    txn = await coordinator.begin(10_000)
    await coordinator.join(txn, ["a"])
    ending = asyncio.create_task(coordinator.end(txn, commits=True))
    await settle()
    (telling,) = cast(Any, coordinator)._endings.values()
    telling.cancel()
    await ending
    await settle()
    place = cast(Any, coordinator)._topic
    assert place.reloads == ["an end of a transaction was not carried out"]
    coordinator.close()


async def test_an_end_that_closing_cancels_loads_nothing_again() -> None:
    coordinator = await owner(Log(), Told(answers=False))
    txn = await coordinator.begin(10_000)
    await coordinator.join(txn, ["a"])
    ending = asyncio.create_task(coordinator.end(txn, commits=True))
    await settle()
    coordinator.close()
    with pytest.raises(CoordinatorNotFoundError):
        await ending
    assert cast(Any, coordinator)._topic.reloads == []


@pytest.mark.parametrize("is_topic", [False, True])
async def test_a_transaction_has_not_ended_when_telling_a_participant_is_cancelled(
    is_topic: bool,
) -> None:
    """A task group takes a cancelled task for a done one."""

    class Cancelled(Told):
        async def end_on_topic(self, *args: Any, **kwargs: Any) -> None:
            await super().end_on_topic(*args, **kwargs)
            if is_topic:
                raise asyncio.CancelledError

        async def end_on_subscription(self, *args: Any, **kwargs: Any) -> None:
            await super().end_on_subscription(*args, **kwargs)
            if not is_topic:
                raise asyncio.CancelledError

    log = Log()
    coordinator = await owner(log, Cancelled())
    txn = await coordinator.begin(10_000)
    await coordinator.join(txn, ["a"], [("b", "s")])
    await coordinator.end(txn, commits=True)
    await settle()
    place = cast(Any, coordinator)._topic
    assert place.reloads == ["an end of a transaction was not carried out"]
    assert coordinator.counters.committed == 0
    coordinator.close()
    place.is_closed = True
    told = Told()
    after = await owner(log, told)
    await until(lambda: after.counters.committed == 1, "the next owner has carried it out")
    assert len(told.ends) == 2
    assert set(told.ends) == {("a", txn, True), ("b", "s", txn, True)}
    after.close()
