"""What the driver of a direct read finds in the metadata store."""

import asyncio
import random
import threading
from collections.abc import Callable
from pathlib import Path
from typing import get_args

import pytest

from magnetar.arrow.stored import ledger_directory
from magnetar.arrow.stored.errors import OptionError
from magnetar.arrow.stored.ledger_directory import LedgerDirectory, ledger_part
from magnetar.ledger.client import LedgerClient
from magnetar.ledger.errors import MetadataUnavailableError
from magnetar.ledger.layouts.ledger_layout import LayoutName
from magnetar.ledger.ledger_manager import LedgerManager
from magnetar.ledger.ledger_metadata import Fragment, LedgerMetadata, LedgerState
from magnetar.ledger.metadata.store import MetadataStore
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


class Cluster:
    """A metadata store of a cluster, whose closes are counted."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.closes = 0

    async def open(self, url: str) -> MetadataStore:
        store = await open_store(url)
        close = store.close

        async def counted() -> None:
            self.closes += 1
            await close()

        store.close = counted  # type: ignore[method-assign]  # to count
        return store


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Cluster:
    found = Cluster(f"embedded:{tmp_path / 'metadata.db'}")
    asyncio.run(make_cluster(found.url, get_args(LayoutName)[0]))
    monkeypatch.setattr(ledger_directory, "open_store", found.open)
    return found


def directory_threads() -> list[threading.Thread]:
    return [each for each in threading.enumerate() if each.name == "ledger-directory"]


async def hang(_: LedgerClient) -> None:
    await asyncio.Event().wait()


async def fail(_: LedgerClient) -> None:
    raise MetadataUnavailableError("no answer")


@pytest.mark.parametrize("start", [fail, hang])
def test_a_start_that_fails_leaves_neither_a_session_nor_a_thread(
    monkeypatch: pytest.MonkeyPatch, cluster: Cluster, start: Callable[[LedgerClient], object]
) -> None:
    monkeypatch.setattr(ledger_directory, "_TIMEOUT_S", 0.05)
    monkeypatch.setattr(LedgerClient, "start", start)
    with pytest.raises(OptionError, match=r"option metadata\.url: embedded:.*no answer"):
        LedgerDirectory(cluster.url)
    assert cluster.closes == 1
    assert not directory_threads()


def test_a_close_that_hangs_leaves_no_thread_and_fails_no_read(
    monkeypatch: pytest.MonkeyPatch, cluster: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    directory = LedgerDirectory(cluster.url)
    monkeypatch.setattr(ledger_directory, "_TIMEOUT_S", 0.05)
    monkeypatch.setattr(LedgerClient, "close", hang)
    directory.close()
    assert f"{cluster.url}: the metadata store was not closed within" in caplog.text
    assert cluster.closes == 1
    assert not directory_threads()


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
