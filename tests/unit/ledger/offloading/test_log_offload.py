"""What is due for one log: no two steps replace and forget one ledger at the same time."""

import asyncio
from pathlib import Path
from typing import cast

import pytest

from magnetar.ledger.errors import (
    LedgersLeftError,
    LogFencedError,
    ObjectStoreUnavailableError,
)
from magnetar.ledger.managed_log.log_metadata import LogLedger
from magnetar.ledger.managed_log.log_objects import ObjectBase, ObjectState
from magnetar.ledger.offloading.log_offload import FAILURES_IN_A_ROW_MAX, LogOffload
from magnetar.ledger.offloading.offload_choice import OffloadRules
from magnetar.ledger.offloading.offloader import OffloadedLog, Offloader
from tests.unit.ledger.offloading.scrubbed_log import HandClock, ScrubbedLog
from tests.waiting import settle

BASE = ObjectBase("main", "logs/")


class Steps:
    """An offloader whose steps wait for a test."""

    copies_at_once = 1

    def __init__(self) -> None:
        self.begun: list[str] = []
        self.gate = asyncio.Event()
        self.failing: set[int] = set()
        self.fenced: set[int] = set()

    async def forget(self, _owned: OffloadedLog, ledger_id: int) -> None:
        self.begun.append(f"forget {ledger_id}")
        await self.gate.wait()

    async def copy(self, _owned: OffloadedLog, ledger_id: int, _base: ObjectBase) -> None:
        self.begun.append(f"copy {ledger_id}")
        await self.gate.wait()
        await asyncio.sleep(0)  # a copy takes more than one turn of the loop
        if ledger_id in self.failing:
            raise ObjectStoreUnavailableError(f"ledger {ledger_id}")
        if ledger_id in self.fenced:
            raise LogFencedError("another broker has it")

    async def heal(self, _owned: OffloadedLog, ledger_id: int, _attempt: str) -> bool:
        self.begun.append(f"heal {ledger_id}")
        return True


async def test_no_object_is_replaced_while_the_bookies_are_told_to_forget_a_ledger(
    tmp_path: Path,
) -> None:
    log, steps = ScrubbedLog(tmp_path), Steps()
    await log.add(1, ObjectState.COPIED)
    offload = LogOffload(log, cast(Offloader, steps), HandClock())
    rules = OffloadRules(deletion_lag_s=0)
    look = asyncio.ensure_future(offload.look(log.ledgers, rules, BASE))
    heal = asyncio.ensure_future(offload.heal(1, "ab" * 16))
    await settle()
    assert steps.begun == ["forget 1"]
    steps.gate.set()
    await look
    assert await heal
    assert steps.begun == ["forget 1", "heal 1"]


DUE = [LogLedger(number, entries=1, bytes=1, closed_ms=1) for number in range(1, 8)]
ALL = OffloadRules(bytes_on_bookies=0, small_bytes=0)


@pytest.fixture
def steps() -> Steps:
    made = Steps()
    made.copies_at_once = 2
    return made


@pytest.fixture
def offload(tmp_path: Path, steps: Steps) -> LogOffload:
    return LogOffload(ScrubbedLog(tmp_path), cast(Offloader, steps), HandClock())


async def test_as_many_ledgers_of_a_log_are_copied_at_once_as_the_process_copies(
    steps: Steps, offload: LogOffload
) -> None:
    look = asyncio.ensure_future(offload.look(DUE, ALL, BASE))
    await settle()
    assert steps.begun == ["copy 1", "copy 2"]
    steps.gate.set()
    await look
    assert steps.begun == [f"copy {each.ledger_id}" for each in DUE]


async def test_a_look_ends_when_several_ledgers_in_a_row_fail(
    steps: Steps, offload: LogOffload
) -> None:
    steps.failing = {each.ledger_id for each in DUE}
    steps.gate.set()
    with pytest.raises(LedgersLeftError) as raised:
        await offload.look(DUE, ALL, BASE)
    assert raised.value.is_ended
    # The one that was under way beside the last of them is the only one more.
    assert len(steps.begun) <= FAILURES_IN_A_ROW_MAX + 1


async def test_a_log_that_is_lost_ends_the_copies_beside(steps: Steps, offload: LogOffload) -> None:
    steps.fenced = {1}
    look = asyncio.ensure_future(offload.look(DUE, ALL, BASE))
    await settle()
    steps.gate.set()
    with pytest.raises(LogFencedError):
        await look
    begun = list(steps.begun)
    await settle()
    assert steps.begun == begun
    assert len(begun) < len(DUE)
