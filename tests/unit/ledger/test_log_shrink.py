"""Trimming a log: what may be gone takes nobody in."""

import pytest

from magnetar.ledger.errors import UnknownOutcomeError
from magnetar.ledger.managed_log.log_extent import LogExtent
from magnetar.ledger.managed_log.log_ledgers import LogShrink
from magnetar.ledger.managed_log.log_list import LogList
from magnetar.ledger.managed_log.log_metadata import LogLedger
from magnetar.ledger.metadata.store import Versioned
from magnetar.ledger.position import Position
from tests.unit.ledger.test_log_list import PATH, UNKNOWN, OneNode


class Appender:
    """The part of one that is used here."""

    def __init__(self, extent: LogExtent) -> None:
        self.extent = extent


class Ledgers:
    def __init__(self) -> None:
        self.deleted: list[int] = []

    async def delete(self, ledger_id: int) -> bool:
        self.deleted.append(ledger_id)
        return True


@pytest.mark.parametrize("happens", [True, False])
async def test_a_ledger_that_may_have_left_the_list_is_no_place_for_a_new_cursor(
    monkeypatch: pytest.MonkeyPatch, happens: bool
) -> None:
    store = OneNode()
    log_list = LogList(store, PATH, properties={})  # type: ignore[arg-type]
    await log_list.load()
    for ledger_id in (1, 2):
        await log_list.update(lambda metadata, number=ledger_id: metadata.with_next(number))  # type: ignore[misc]
        closed = LogLedger(ledger_id, 10, 100, 1)
        await log_list.update(lambda metadata, ledger=closed: metadata.with_closed(ledger))  # type: ignore[misc]
    await log_list.update(lambda metadata: metadata.with_next(3))
    extent = LogExtent()
    extent.reshape(log_list.ledgers)
    assert 1 in extent.shape
    ledgers = Ledgers()
    shrink = LogShrink(PATH, log_list, Appender(extent), ledgers)  # type: ignore[arg-type]
    before = store.fate
    store.fate = lambda number: (happens, UNKNOWN)
    if happens:
        monkeypatch.setattr(store, "get", _unavailable)
    with pytest.raises(UnknownOutcomeError):
        await shrink.unlist(Position(2, 0))
    assert 1 not in extent.shape
    assert 2 in extent.shape
    await shrink.delete_unlisted()
    assert not ledgers.deleted, "as long as it may be listed"
    store.fate = before
    monkeypatch.undo()
    await shrink.unlist(Position(2, 0))
    await shrink.delete_unlisted()
    assert ledgers.deleted == [1]


async def _unavailable(_: str) -> Versioned:
    raise UNKNOWN
