"""The ledger list and its compare-and-set: whose update happened, and when to give up asking."""

import asyncio
import random
from collections.abc import Callable

import pytest

from magnetar.ledger.errors import (
    BadVersionError,
    InvalidLedgerMetadataError,
    LogExistsError,
    LogFencedError,
    NodeExistsError,
    NoNodeError,
    NoSuchLogError,
    UnknownOutcomeError,
    ValueTooLargeError,
)
from magnetar.ledger.managed_log.log_list import ATTEMPTS_MAX, LogList
from magnetar.ledger.managed_log.log_metadata import LogLedger, LogMetadata
from magnetar.ledger.metadata.store import Versioned

PATH = "/logs/a-log"


class OneNode:
    """A store with one node. `fate` decides of each write: does it happen, and what is said."""

    def __init__(self) -> None:
        self.node: Versioned | None = None
        self.writes = 0
        self.fate: Callable[[int], tuple[bool, Exception | None]] = lambda _: (True, None)

    async def get(self, path: str) -> Versioned:
        await asyncio.sleep(0)
        if self.node is None:
            raise NoNodeError(path)
        return self.node

    async def create(self, path: str, value: bytes = b"") -> str:
        await asyncio.sleep(0)
        if self.node is not None:
            raise NodeExistsError(path)
        happens, error = self._next()
        if happens:
            self.node = Versioned(value, 0)
        if error is not None:
            raise error
        return path

    async def set(self, path: str, value: bytes, *, version: int) -> int:
        await asyncio.sleep(0)
        happens, error = self._next()
        if self.node is None:
            raise NoNodeError(path)
        if self.node.version != version:
            raise BadVersionError(path)
        if happens:
            self.node = Versioned(value, version + 1)
        if error is not None:
            raise error
        return version + 1

    async def catch_up(self) -> None:
        """Do nothing: the store is never behind."""

    def _next(self) -> tuple[bool, Exception | None]:
        self.writes += 1
        return self.fate(self.writes)


UNKNOWN = UnknownOutcomeError("the connection broke")


def with_next(ledger_id: int) -> Callable[[LogMetadata], LogMetadata]:
    return lambda metadata: metadata.with_next(ledger_id)


@pytest.fixture
def store() -> OneNode:
    return OneNode()


def list_on(store: OneNode) -> LogList:
    return LogList(store, PATH, properties={})  # type: ignore[arg-type]


def ids(log_list: LogList) -> list[int]:
    return [ledger.ledger_id for ledger in log_list.ledgers]


async def test_updates_at_once_are_each_computed_from_the_list_that_the_one_before_made(
    store: OneNode,
) -> None:
    log_list = list_on(store)
    await log_list.load()
    await asyncio.gather(*(log_list.update(with_next(number)) for number in (5, 6)))
    closed = LogLedger(5, 3, 30, 1)
    await asyncio.gather(
        log_list.update(lambda metadata: metadata.with_closed(closed)),
        log_list.update(lambda metadata: metadata.with_next(7)),
    )
    assert ids(log_list) == [5, 6, 7]
    assert log_list.ledgers[0] == closed


@pytest.mark.parametrize("happens", [True, False])
async def test_an_update_of_unknown_outcome_is_made_once(store: OneNode, happens: bool) -> None:
    log_list = list_on(store)
    await log_list.load()
    store.writes = 0
    store.fate = lambda number: (happens, UNKNOWN) if number == 1 else (True, None)
    await log_list.update(with_next(5))
    assert ids(log_list) == [5]
    assert log_list.is_resolved
    assert store.writes == (1 if happens else 2)


async def test_a_list_that_no_owner_could_read_again_is_not_written(store: OneNode) -> None:
    log_list = list_on(store)
    await log_list.load()
    await log_list.update(with_next(5))
    before = store.node
    with pytest.raises(InvalidLedgerMetadataError, match="open ledger"):
        await log_list.update(lambda metadata: metadata.ended())
    assert store.node == before
    await log_list.update(with_next(6))
    assert ids(log_list) == [5, 6]


async def test_outcomes_that_stay_unknown_are_not_asked_about_for_ever(store: OneNode) -> None:
    log_list = list_on(store)
    await log_list.load()
    store.writes = 0
    store.fate = lambda _: (False, UNKNOWN)
    with pytest.raises(UnknownOutcomeError):
        await log_list.update(with_next(5))
    assert store.writes == ATTEMPTS_MAX
    assert not log_list.is_resolved, "each of them may happen yet"
    store.fate = lambda _: (True, None)
    await log_list.update(with_next(5))
    assert ids(log_list) == [5]
    assert log_list.is_resolved


async def test_a_log_made_anew_that_came_to_the_same_version_is_somebody_elses(
    store: OneNode,
) -> None:
    """The log's owner was stopped in the middle of a write, for longer than its session lasts."""
    log_list, other = list_on(store), list_on(store)
    await log_list.create(random.Random(1))

    def made_anew(number: int) -> tuple[bool, Exception]:
        other_metadata = LogMetadata(creation_token=77)
        store.node = Versioned(other_metadata.to_json(), 0)
        return False, UNKNOWN

    store.fate = made_anew
    with pytest.raises(LogFencedError):
        await log_list.update(with_next(5))
    store.fate = lambda _: (True, None)
    await other.load()
    assert ids(other) == []
    with pytest.raises(LogFencedError):
        await log_list.check_owned()


async def test_an_update_that_was_cancelled_and_landed_is_what_the_next_one_starts_from(
    store: OneNode,
) -> None:
    log_list = list_on(store)
    await log_list.load()
    await log_list.update(with_next(5))
    assert store.node is not None
    before = store.node
    updating = asyncio.ensure_future(log_list.update(with_next(6)))
    await asyncio.sleep(0)
    updating.cancel()
    with pytest.raises(asyncio.CancelledError):
        await updating
    assert not log_list.is_resolved
    landed = LogMetadata.from_json(before.value, path=PATH).with_next(6)
    store.node = Versioned(landed.to_json(), before.version + 1)
    closed = LogLedger(5, 3, 30, 1)
    await log_list.update(lambda metadata: metadata.with_closed(closed).with_next(7))
    assert ids(log_list) == [5, 6, 7]


async def test_rule_1_1_a_list_that_somebody_else_changed_is_not_ours(store: OneNode) -> None:
    first, second = list_on(store), list_on(store)
    await first.load()
    await second.load()
    await second.update(with_next(8))
    with pytest.raises(LogFencedError):
        await first.update(with_next(9))
    with pytest.raises(LogFencedError):
        await first.check_unchanged()
    store.node = None
    with pytest.raises(LogFencedError, match="deleted"):
        await second.update(with_next(10))


async def test_a_value_that_is_too_large_leaves_nothing_unresolved(store: OneNode) -> None:
    log_list = list_on(store)
    await log_list.load()
    store.fate = lambda _: (False, ValueTooLargeError("1000001 bytes"))
    with pytest.raises(ValueTooLargeError):
        await log_list.update(with_next(5))
    assert log_list.is_resolved
    assert ids(log_list) == []


@pytest.mark.parametrize("happens", [True, False])
async def test_a_creation_whose_answer_was_lost_is_known_by_its_token(
    store: OneNode, happens: bool
) -> None:
    store.fate = lambda number: (happens, UNKNOWN) if number == 1 else (True, None)
    log_list = list_on(store)
    await log_list.create(random.Random(1))
    await log_list.update(with_next(5))
    with pytest.raises(LogExistsError, match="open it"):
        await list_on(store).create(random.Random(2))


async def test_a_log_that_must_exist_is_not_created(store: OneNode) -> None:
    with pytest.raises(NoSuchLogError):
        await list_on(store).load(may_create=False)
    assert store.node is None


async def test_a_removal_whose_answer_was_lost_is_done_when_it_is_tried_again() -> None:
    class Deleting(OneNode):
        async def delete(self, path: str, *, version: int | None = None) -> None:
            if self.node is None:
                raise NoNodeError(path)
            self.node = None
            raise UNKNOWN

    node = Deleting()
    log_list = LogList(node, PATH, properties={})  # type: ignore[arg-type]
    await log_list.load()
    with pytest.raises(UnknownOutcomeError):
        await log_list.delete()
    await log_list.delete()
