"""Auditors over the clusters of `healing.py`."""

import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from magnetar.ledger.autorecovery.auditor import Auditor
from magnetar.ledger.autorecovery.controls import Controls
from magnetar.ledger.autorecovery.settings import AuditorSettings
from magnetar.ledger.settings import LedgerSettings
from tests.integration.ledger.autorecovery.healing import Healing

AUDITOR = AuditorSettings(
    gather_s=0.01,
    settle_s=0.0,
    mass_loss_wait_s=0.1,
    audit_again_s=0.0,
    retry_delay_s=0.05,
    bookie_check_interval_s=0,
    all_ledgers_check_interval_s=0,
    replicas_check_interval_s=0,
    first_check_delay_s=0.0,
    second_look_delay_s=0.01,
    survey_interval_s=0.05,
)
"""Nothing by itself but audits."""


@asynccontextmanager
async def auditor_of(
    healing: Healing,
    settings: AuditorSettings = AUDITOR,
    *,
    ledger_settings: LedgerSettings | None = None,
) -> AsyncIterator[Auditor]:
    """An auditor; alone, it is elected when this is entered."""
    auditor = Auditor(
        healing.store,
        healing.client,
        name="auditor",
        clock=healing.clock,
        random=random.Random("auditor"),
        ledger_settings=ledger_settings or LedgerSettings(),
        settings=settings,
    )
    await auditor.start()
    try:
        yield auditor
    finally:
        await auditor.close()


def controls_of(healing: Healing) -> Controls:
    return Controls(healing.store)
