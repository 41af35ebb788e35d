"""What is due for one log: no two steps replace and forget one ledger at the same time."""

import asyncio
from pathlib import Path
from typing import cast

from magnetar.ledger.managed_log.log_objects import ObjectBase, ObjectState
from magnetar.ledger.offloading.log_offload import LogOffload
from magnetar.ledger.offloading.offload_choice import OffloadRules
from magnetar.ledger.offloading.offloader import OffloadedLog, Offloader
from tests.unit.ledger.offloading.scrubbed_log import HandClock, ScrubbedLog
from tests.waiting import settle

BASE = ObjectBase("main", "logs/")


class Steps:
    """An offloader whose steps wait for a test."""

    def __init__(self) -> None:
        self.begun: list[str] = []
        self.gate = asyncio.Event()

    async def forget(self, _owned: OffloadedLog, ledger_id: int) -> None:
        self.begun.append(f"forget {ledger_id}")
        await self.gate.wait()

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
