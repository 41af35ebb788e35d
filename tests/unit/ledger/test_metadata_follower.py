"""Following the metadata of a ledger: an announced change is read, whoever looks in between."""

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import cast

import pytest

from magnetar.ledger.errors import MetadataUnavailableError
from magnetar.ledger.ledger_manager import LedgerManager, VersionedLedger
from magnetar.ledger.ledger_metadata import Fragment, LedgerMetadata, LedgerState
from magnetar.ledger.metadata.store import Watch, WatchCallback, WatchEvent
from magnetar.ledger.reading.metadata_follower import MetadataFollower
from tests.waiting import settle

OPEN = LedgerMetadata(
    ledger_id=7,
    ensemble_size=3,
    write_quorum=3,
    ack_quorum=2,
    state=LedgerState.OPEN,
    last_entry_id=-1,
    length=0,
    ensembles=(Fragment(0, ("a", "b", "c")),),
    created_ms=0,
    creation_token=1,
)
CLOSED = replace(OPEN, state=LedgerState.CLOSED, last_entry_id=4, length=20)


def away() -> MetadataUnavailableError:
    return MetadataUnavailableError("the store is away")


class Watching:
    """A watch that is closed."""

    def close(self) -> None:
        """Nothing is told any more."""


class Manager:
    """The metadata of one ledger, each read of which the test answers."""

    def __init__(self) -> None:
        self.reads: list[asyncio.Future[VersionedLedger]] = []
        """Reads without an answer."""
        self.announce: WatchCallback = lambda _: None

    def watch(self, _ledger_id: int, callback: WatchCallback) -> Watch:
        self.announce = callback
        return Watching()

    async def read(self, _ledger_id: int) -> VersionedLedger:
        read: asyncio.Future[VersionedLedger] = asyncio.get_running_loop().create_future()
        self.reads.append(read)
        return await read

    def next_read(self) -> asyncio.Future[VersionedLedger]:
        return self.reads.pop(0)


def follower_of(
    manager: Manager, on_change: Callable[[LedgerMetadata], None] = lambda _: None
) -> MetadataFollower:
    return MetadataFollower(
        VersionedLedger(OPEN, 0),
        cast(LedgerManager, manager),
        retry_delay_s=0,
        on_change=on_change,
        on_deleted=lambda _: None,
        on_invalid=lambda _: None,
    )


async def following(follower: MetadataFollower, manager: Manager) -> None:
    """Follow the ledger, and read once."""
    follower.watch()
    await settle()
    manager.next_read().set_result(VersionedLedger(OPEN, 0))
    await settle()
    assert not manager.reads


@pytest.mark.parametrize("is_cancelled", [False, True])
async def test_an_announced_change_is_read_though_a_look_from_elsewhere_failed_in_between(
    is_cancelled: bool,
) -> None:
    """The store goes away after the close of the ledger was announced. No other event follows."""
    manager = Manager()
    follower = follower_of(manager)
    await following(follower, manager)
    manager.announce(WatchEvent.CHANGED)
    await settle()
    manager.next_read().set_exception(away())
    elsewhere = asyncio.create_task(follower.look())  # in the pause before the next look
    await settle()
    (read,) = manager.reads
    if is_cancelled:
        elsewhere.cancel()
    else:
        read.set_exception(away())
    manager.reads.clear()
    await asyncio.wait([elsewhere])
    await settle()
    manager.next_read().set_result(VersionedLedger(CLOSED, 1))
    await settle()
    assert follower.current == CLOSED
    assert not manager.reads
    follower.close()


async def test_a_look_from_elsewhere_that_fails_is_not_repeated_if_nothing_was_announced() -> None:
    manager = Manager()
    follower = follower_of(manager)
    await following(follower, manager)
    elsewhere = asyncio.create_task(follower.look())
    await settle()
    manager.next_read().set_exception(away())
    with pytest.raises(MetadataUnavailableError):
        await elsewhere
    await settle()
    assert not manager.reads
    follower.close()


async def test_changes_are_read_after_one_that_could_not_be_handled() -> None:
    """The error of the handler goes to the handler of the loop."""
    changes: list[LedgerMetadata] = []

    def on_change(metadata: LedgerMetadata) -> None:
        changes.append(metadata)
        if len(changes) == 1:
            raise ValueError("a bug")

    asyncio.get_running_loop().set_exception_handler(lambda *_: None)
    manager = Manager()
    follower = follower_of(manager, on_change)
    await following(follower, manager)
    for version in (1, 2):
        manager.announce(WatchEvent.CHANGED)
        await settle()
        manager.next_read().set_result(VersionedLedger(CLOSED, version))
        await settle()
    assert changes == [CLOSED, CLOSED]
    follower.close()
