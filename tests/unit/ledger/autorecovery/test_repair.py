"""What an attempt at a repair says that an error ended early (`repair.py`)."""

from types import SimpleNamespace
from typing import cast

import pytest

from magnetar.ledger.autorecovery.checker import Checker
from magnetar.ledger.autorecovery.copier import Copier
from magnetar.ledger.autorecovery.repair import LedgerRepair, Repaired, RepairState
from magnetar.ledger.autorecovery.worker_metrics import WorkerMetrics
from magnetar.ledger.autorecovery.worker_settings import WorkerSettings
from magnetar.ledger.client import LedgerClient
from magnetar.ledger.errors import (
    BookieUnavailableError,
    InvalidLedgerMetadataError,
    LedgerError,
    NoSuchLedgerError,
)


async def repaired(error: LedgerError) -> Repaired:
    """The outcome of an attempt at a ledger whose metadata is read with an error."""

    async def read(ledger_id: int) -> None:
        raise error

    async def holds_lock() -> bool:
        return True

    repair = LedgerRepair(
        cast(LedgerClient, SimpleNamespace(manager=SimpleNamespace(read=read))),
        cast(Checker, None),
        cast(Copier, None),
        settings=WorkerSettings(),
        metrics=WorkerMetrics(),
    )
    return await repair.repair(7, {}, may_close=True, holds_lock=holds_lock)


@pytest.mark.parametrize("kind", [InvalidLedgerMetadataError, BookieUnavailableError])
async def test_an_attempt_that_an_error_ended_says_nothing_about_losses(
    kind: type[LedgerError],
) -> None:
    found = await repaired(kind("broken"))
    assert (found.state, found.error, found.is_broken_off) == (
        RepairState.FAILED,
        kind.__name__,
        True,
    )


async def test_a_ledger_that_is_gone_has_no_losses() -> None:
    found = await repaired(NoSuchLedgerError("gone"))
    assert (found.state, found.is_broken_off) == (RepairState.DELETED, False)
