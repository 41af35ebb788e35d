"""What audits say of ledgers whose metadata cannot be read (`audits.py`)."""

import random
from pathlib import Path
from typing import cast

from magnetar.ledger.autorecovery.audits import Audits
from magnetar.ledger.autorecovery.checker import Checker
from magnetar.ledger.autorecovery.metrics import AuditorMetrics
from magnetar.ledger.autorecovery.settings import AuditorSettings
from magnetar.ledger.autorecovery.work_items import WorkItems
from magnetar.ledger.channel import ChannelPool
from magnetar.ledger.ledger_manager import LedgerManager
from magnetar.ledger.metadata.url import open_store
from magnetar.ledger.system import SystemClock
from tests.unreadable_ledgers import open_ledger_of, spoil_ledger


async def test_ledgers_that_cannot_be_read_are_counted_until_they_can_or_are_gone(
    tmp_path: Path,
) -> None:
    store = await open_store(f"embedded:{tmp_path / 'metadata.db'}")
    clock, metrics = SystemClock(), AuditorMetrics()
    manager = LedgerManager(store, random=random.Random(1), clock=clock)
    audits = Audits(
        manager,
        cast(ChannelPool, None),
        cast(Checker, None),
        WorkItems(store, clock=clock, random=random.Random(1)),
        clock=clock,
        random=random.Random(1),
        settings=AuditorSettings(),
        metrics=metrics,
    )

    async def audited() -> int:
        await audits.audit(lambda bookie_id: False, is_mass_loss=lambda: False)
        return metrics.unreadable_ledgers

    ledgers = [await open_ledger_of(manager, "b1") for _ in range(3)]
    assert await audited() == 0
    paths = [await spoil_ledger(store, ledger_id) for ledger_id in ledgers[:2]]
    assert await audited() == 2
    await store.delete(paths[0])
    assert await audited() == 1
    await store.delete(paths[1])
    await audits.check_placement({}, racks_min=1, zones_min=1)
    assert metrics.unreadable_ledgers == 0
    await spoil_ledger(store, ledgers[2])
    await audits.check_placement({}, racks_min=1, zones_min=1)
    assert metrics.unreadable_ledgers == 1
    await store.close()
