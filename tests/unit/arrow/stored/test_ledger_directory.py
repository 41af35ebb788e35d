"""What the driver of a direct read finds in the metadata store."""

import asyncio
import random
from pathlib import Path
from typing import get_args

import pytest

from magnetar.arrow.stored.ledger_directory import LedgerDirectory, ledger_part
from magnetar.ledger.layouts.ledger_layout import LayoutName
from magnetar.ledger.ledger_manager import LedgerManager
from magnetar.ledger.ledger_metadata import Fragment, LedgerMetadata, LedgerState
from magnetar.ledger.metadata.url import open_store
from magnetar.ledger.registration import BookieRegistry
from magnetar.ledger.system import SystemClock


async def make_cluster(url: str, layout: LayoutName) -> int:
    """A cluster with one ledger."""
    store = await open_store(url)
    await BookieRegistry(store).instance_id()
    manager = LedgerManager(store, random=random.Random(1), clock=SystemClock(), layout=layout)

    def make(ledger_id: int, token: int) -> LedgerMetadata:
        return LedgerMetadata(
            ledger_id=ledger_id,
            ensemble_size=1,
            write_quorum=1,
            ack_quorum=1,
            state=LedgerState.OPEN,
            last_entry_id=-1,
            length=0,
            ensembles=(Fragment(0, ("b1",)),),
            created_ms=0,
            creation_token=token,
        )

    made = await manager.create(make)
    await store.close()
    return made.metadata.ledger_id


@pytest.mark.parametrize("layout", get_args(LayoutName))
def test_ledgers_are_found_wherever_the_cluster_keeps_them(
    tmp_path: Path, layout: LayoutName
) -> None:
    url = f"embedded:{tmp_path / 'metadata.db'}"
    ledger_id = asyncio.run(make_cluster(url, layout))
    directory = LedgerDirectory(url)
    try:
        assert set(directory.read([ledger_id])) == {ledger_id}
    finally:
        directory.close()


@pytest.mark.parametrize(
    ("state", "last", "expected"),
    [(LedgerState.CLOSED, 9, 50), (LedgerState.CLOSED, 8, -1), (LedgerState.OPEN, 9, -1)],
    ids=["its end", "before its end", "an open one"],
)
def test_the_length_of_a_ledger_goes_with_the_part_that_reaches_its_end(
    state: LedgerState, last: int, expected: int
) -> None:
    is_closed = state is LedgerState.CLOSED
    metadata = LedgerMetadata(
        ledger_id=7,
        ensemble_size=1,
        write_quorum=1,
        ack_quorum=1,
        state=state,
        last_entry_id=9 if is_closed else -1,
        length=50 if is_closed else 0,
        ensembles=(Fragment(0, ("b1",)),),
        created_ms=0,
        creation_token=1,
    )
    assert ledger_part(metadata, 0, last).length == expected
