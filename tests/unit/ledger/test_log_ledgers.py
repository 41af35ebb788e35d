"""Deleting ledgers that left a log (`log_ledgers.py`)."""

from types import SimpleNamespace
from typing import cast

import pytest

from magnetar.ledger.client import LedgerClient
from magnetar.ledger.errors import NoSuchLedgerError
from magnetar.ledger.managed_log.log_ledgers import RESTORED_PROPERTY, delete_ledger_of

RESTORED = {RESTORED_PROPERTY: "{}"}
PATH = "/managed-ledgers/public/default/persistent/flights"


class Client:
    """What is needed of the ledger client."""

    def __init__(self, custom_metadata: dict[str, str] | None) -> None:
        self._custom_metadata = custom_metadata
        self.manager = self
        self.deleted: list[int] = []

    async def read(self, ledger_id: int) -> SimpleNamespace:
        if self._custom_metadata is None:
            raise NoSuchLedgerError(f"ledger {ledger_id}")
        metadata = SimpleNamespace(custom_metadata=self._custom_metadata)
        return SimpleNamespace(metadata=metadata)

    async def delete(self, ledger_id: int) -> None:
        self.deleted.append(ledger_id)


@pytest.mark.parametrize(
    "custom_metadata", [{"component": "managed-log", "log": PATH}, {}], ids=["made for it", "old"]
)
async def test_a_ledger_that_was_made_for_the_log_is_deleted(
    custom_metadata: dict[str, str],
) -> None:
    client = Client(custom_metadata)
    await delete_ledger_of(cast(LedgerClient, client), PATH, 7, RESTORED)
    assert client.deleted == [7]


@pytest.mark.parametrize(
    "custom_metadata",
    [
        {"component": "managed-log", "log": f"{PATH}-other"},
        {"component": "cursor", "log": PATH, "cursor": "s"},
        {"component": "schema", "schema": "/schemas/public/default/flights"},
    ],
)
async def test_a_ledger_of_somebody_else_stays_though_the_log_listed_its_id(
    custom_metadata: dict[str, str],
) -> None:
    """A restored log lists ids of the cluster that it was backed up in."""
    client = Client(custom_metadata)
    await delete_ledger_of(cast(LedgerClient, client), PATH, 7, RESTORED)
    assert client.deleted == []


async def test_the_ledgers_of_other_logs_are_not_looked_at_first() -> None:
    """A look at each of them would cost a read for nothing."""
    client = Client({"component": "cursor", "log": PATH, "cursor": "s"})
    await delete_ledger_of(cast(LedgerClient, client), PATH, 7, {})
    assert client.deleted == [7]


async def test_a_ledger_that_is_gone_is_said_to_be() -> None:
    with pytest.raises(NoSuchLedgerError):
        await delete_ledger_of(cast(LedgerClient, Client(None)), PATH, 7, RESTORED)
