"""Closed ledgers of a log are read from bookies or objects, whichever has them."""

import asyncio
from collections.abc import Sequence
from typing import cast

import pytest

from magnetar.ledger.client import LedgerClient
from magnetar.ledger.errors import (
    BookieUnavailableError,
    LogDataLossError,
    NoSuchLedgerError,
    ObjectStoreRefusedError,
    ObjectStoreUnavailableError,
)
from magnetar.ledger.managed_log.closed_ledgers import ClosedLedgers
from magnetar.ledger.managed_log.log_metadata import LogLedger, LogMetadata
from magnetar.ledger.managed_log.log_objects import LedgerObject, ObjectBase, ObjectState
from magnetar.ledger.ports import ObjectPlace

ENTRIES = [b"%d" % number for number in range(10)]
ATTEMPT, ANOTHER = "ab" * 16, "cd" * 16
NONE = None
COPYING, COPIED, ONLY = (
    LedgerObject(state, ATTEMPT, 0)
    for state in (ObjectState.COPYING, ObjectState.COPIED, ObjectState.ONLY)
)


class Handle:
    def __init__(self, source: "Sources", name: str) -> None:
        self._sources, self.name = source, name
        self.is_closed = False

    async def read(self, first: int, last: int, *, bytes_max: int) -> list[bytes]:
        self._sources.reads.append((self.name, first))
        self._sources.on_read(self.name)
        return ENTRIES[first : min(last + 1, first + bytes_max)]

    def entries_after(self, publish_ms: int) -> range:
        return range(publish_ms, 10)

    async def close(self) -> None:
        await self._sources.may_close.wait()
        self.is_closed = True


class Sources:
    """Bookies and an object store; it is its own ledger client, and what reads objects."""

    def __init__(self) -> None:
        self.reads: list[tuple[str, int]] = []
        self.handles: list[Handle] = []
        self.failing: dict[str, Exception] = {}
        self.opened: list[str] = []
        self.may_close = asyncio.Event()
        self.may_close.set()
        self.objects: Sources | None = self
        self.log = LogMetadata((LogLedger(7, 10, 100, 1),), object_bases=(ObjectBase("s", ""),))

    def on_read(self, name: str) -> None:
        error = self.failing.get(name.split(" ")[0])
        if error is not None:
            raise error

    def set(self, found: LedgerObject | None) -> None:
        self.log = self.log.with_ledgers([LogLedger(7, 10, 100, 1, found)])

    async def open(self, what: int | ObjectPlace, *, password: bytes | None) -> Handle:
        is_object = isinstance(what, ObjectPlace)
        name = f"object {what.attempt[:2]}" if isinstance(what, ObjectPlace) else "bookies"
        if not is_object:
            self.on_read("opening")
        self.opened.append(name)
        self.handles.append(Handle(self, name))
        return self.handles[-1]


@pytest.fixture
def sources(monkeypatch: pytest.MonkeyPatch) -> Sources:
    monkeypatch.setattr("magnetar.ledger.managed_log.closed_ledgers.LedgerReader", Handle)
    return Sources()


@pytest.fixture
def closed(sources: Sources) -> ClosedLedgers:
    return ClosedLedgers(cast(LedgerClient, sources), "/log", lambda: sources.log, password=b"")


async def read(closed: ClosedLedgers, first: int = 0, count: int = 2) -> Sequence[bytes]:
    return await closed.read(7, first, 9, bytes_max=count)


def names(sources: Sources) -> list[str]:
    return [name.split(" ")[0] for name, _ in sources.reads]


@pytest.mark.parametrize(
    ("found", "prefers_objects", "expected"),
    [
        (NONE, True, "bookies"),
        (COPYING, True, "bookies"),
        (COPIED, False, "bookies"),
        (COPIED, True, "object"),
        (ONLY, False, "object"),
    ],
)
async def test_a_ledger_is_read_where_the_list_says(
    sources: Sources,
    closed: ClosedLedgers,
    found: LedgerObject | None,
    prefers_objects: bool,
    expected: str,
) -> None:
    sources.set(found)
    closed.prefers_objects = prefers_objects
    assert await read(closed) == ENTRIES[:2]
    assert names(sources) == [expected]


async def test_while_there_are_two_copies_the_other_one_serves_what_the_first_cannot(
    sources: Sources, closed: ClosedLedgers
) -> None:
    sources.set(COPIED)
    sources.failing["bookies"] = BookieUnavailableError("away")
    assert await read(closed) == ENTRIES[:2]
    closed.prefers_objects = True
    sources.failing = {"object": ObjectStoreUnavailableError("away")}
    assert await read(closed) == ENTRIES[:2]
    assert names(sources) == ["bookies", "object", "object", "bookies"]
    assert closed.turned_away == 2


async def test_what_no_copy_can_serve_fails_with_what_the_first_said(
    sources: Sources, closed: ClosedLedgers
) -> None:
    sources.set(COPIED)
    sources.failing["bookies"] = BookieUnavailableError("away")
    sources.failing["object"] = ObjectStoreUnavailableError("away, too")
    with pytest.raises(BookieUnavailableError, match="away"):
        await read(closed)


async def test_a_ledger_that_leaves_the_bookies_while_it_is_read_comes_from_its_object(
    sources: Sources, closed: ClosedLedgers
) -> None:
    sources.set(COPYING)

    def move(name: str) -> None:
        if name == "bookies":
            sources.set(ONLY)
            raise NoSuchLedgerError("it is deleted")

    sources.on_read = move  # type: ignore[method-assign]
    assert await read(closed) == ENTRIES[:2]
    assert names(sources) == ["bookies", "object"]


async def test_a_listed_ledger_that_is_gone_is_a_loss(
    sources: Sources, closed: ClosedLedgers
) -> None:
    sources.failing["opening"] = NoSuchLedgerError("no metadata")
    with pytest.raises(LogDataLossError, match="listed"):
        await read(closed)


async def test_without_a_store_the_error_says_what_to_do(
    sources: Sources, closed: ClosedLedgers
) -> None:
    sources.set(ONLY)
    sources.objects = None
    with pytest.raises(ObjectStoreRefusedError, match=r"object store 's'.*settings"):
        await read(closed)


async def test_each_of_several_readers_of_an_object_goes_on_with_a_handle_of_its_own(
    sources: Sources, closed: ClosedLedgers
) -> None:
    sources.set(ONLY)
    for step in range(3):
        await read(closed, 2 * step)
        await read(closed, 5 + step, 1)
    assert len(sources.opened) == 2
    assert [each.is_closed for each in sources.handles] == [False] * 2


async def test_an_object_that_was_replaced_is_opened_anew(
    sources: Sources, closed: ClosedLedgers
) -> None:
    sources.set(ONLY)
    await read(closed)
    sources.set(LedgerObject(ObjectState.ONLY, ANOTHER, 0))
    await read(closed, 2)
    assert sources.opened == ["object ab", "object cd"]


async def test_handles_are_bounded_and_closed(sources: Sources, closed: ClosedLedgers) -> None:
    sources.set(ONLY)
    for _ in range(3):
        for at in (0, 3, 5, 7, 8):
            await read(closed, at, 1)
    for _ in range(20):
        await read(closed, 0, 1)
        await read(closed, 0, 2)
    assert sum(not each.is_closed for each in sources.handles) <= 16
    await closed.close()
    assert all(each.is_closed for each in sources.handles)
    assert await read(closed) == ENTRIES[:2]
    assert all(each.is_closed for each in sources.handles)


async def test_a_close_leaves_no_handle_open_that_a_read_is_about_to_keep(
    sources: Sources, closed: ClosedLedgers
) -> None:
    sources.set(ONLY)
    await read(closed)
    sources.may_close.clear()
    reading = asyncio.create_task(read(closed))  # its handle replaces that of the first read
    await asyncio.sleep(0)
    closing = asyncio.create_task(closed.close())
    await asyncio.sleep(0)
    sources.may_close.set()
    await asyncio.gather(reading, closing)
    assert [handle.is_closed for handle in sources.handles] == [True, True]


@pytest.mark.parametrize(
    ("found", "prefers_objects", "is_asked"),
    [
        (NONE, True, False),
        (COPYING, True, False),
        (COPIED, False, False),
        (COPIED, True, True),
        (ONLY, False, True),
    ],
)
async def test_a_time_is_looked_up_in_the_index_where_objects_are_read_first(
    sources: Sources,
    closed: ClosedLedgers,
    found: LedgerObject | None,
    prefers_objects: bool,
    is_asked: bool,
) -> None:
    sources.set(found)
    closed.prefers_objects = prefers_objects
    assert await closed.entries_after(7, 5) == (range(5, 10) if is_asked else None)
    assert sources.reads == []
    assert all(each.is_closed for each in sources.handles)


async def test_a_time_cannot_be_looked_up_without_the_store(
    sources: Sources, closed: ClosedLedgers
) -> None:
    sources.set(ONLY)
    sources.objects = None
    assert await closed.entries_after(7, 5) is None
    assert await closed.entries_after(8, 5) is None
