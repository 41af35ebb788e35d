"""What the healer does with reports of damage: once each, with delays, within bounds."""

import asyncio
from pathlib import Path
from typing import Any, cast

from magnetar.bookie.entry_logs.damage import Damage
from magnetar.bookie.errors import NoOtherCopyError, ReplicasUnavailableError, StorageIOError
from magnetar.bookie.integrity.healer import Healer
from magnetar.bookie.integrity.own_requests import OwnRequests
from magnetar.bookie.integrity.peers import Peers
from magnetar.bookie.metrics import IntegrityMetrics
from magnetar.bookie.settings import BookieSettings
from magnetar.ledger.errors import NoSuchLedgerError
from magnetar.ledger.ledger_metadata import Fragment, LedgerMetadata, LedgerState
from tests.bookie_parts import packets_of
from tests.waiting import settle

BOOKIES = ("b1", "b2", "b3")
SETTINGS: dict[str, Any] = {"data_directory": Path("data"), "heal_retry_s": 10}


def metadata_of(ledger_id: int) -> LedgerMetadata:
    return LedgerMetadata(
        ledger_id=ledger_id,
        ensemble_size=3,
        write_quorum=3,
        ack_quorum=2,
        state=LedgerState.CLOSED,
        last_entry_id=99,
        length=700,
        ensembles=(Fragment(0, BOOKIES),),
        created_ms=0,
        creation_token=1,
    )


class World:
    """The disk, the other bookies and the clock, in one."""

    def __init__(self, bookie_id: str = "b1", **settings: Any) -> None:
        self.damaged: dict[int, set[int]] = {}
        self.now_s = 0.0
        self.peers_error: Exception | None = None
        self.is_deleted = False
        self.flush_error: StorageIOError | None = None
        self.listed: list[tuple[int, int, int]] = []
        self.fetched: list[tuple[int, int, int]] = []
        self.metrics = IntegrityMetrics()
        self.healer = Healer(
            bookie_id,
            peers=cast(Peers, self),
            requests=cast(OwnRequests, self),
            check=self.check,
            flush=self.flush,
            clock=self,
            metrics=self.metrics,
            settings=BookieSettings(
                data_directory=Path("data"), **{"heal_retry_s": 10, **settings}
            ),
        )

    def monotonic_s(self) -> float:
        return self.now_s

    def boot_s(self) -> float:
        return self.now_s

    def wall_ms(self) -> int:
        return 0

    async def metadata(self, ledger_id: int) -> LedgerMetadata:
        if self.is_deleted:
            raise NoSuchLedgerError("deleted")
        return metadata_of(ledger_id)

    async def fetch(self, metadata: LedgerMetadata, first: int, last: int) -> list[bytes]:
        if self.peers_error is not None:
            raise self.peers_error
        last = min(last, first + 9)  # a peer gives ten at once
        self.fetched.append((metadata.ledger_id, first, last))
        return packets_of(metadata.ledger_id, first, last - first + 1)

    async def add(self, ledger_id: int, master_key: bytes, packets: list[bytes]) -> None:
        first = int.from_bytes(packets[0][8:16], "big")
        self.damaged[ledger_id] -= set(range(first, first + len(packets)))

    async def list_for_repair(self, ledger_id: int, first: int, last: int, reason: str) -> None:
        self.listed.append((ledger_id, first, last))

    async def flush(self) -> None:
        if self.flush_error is not None:
            raise self.flush_error

    async def check(self, ledger_id: int, first: int, last: int) -> list[Damage]:
        found = sorted(each for each in self.damaged.get(ledger_id, ()) if first <= each <= last)
        return [Damage("log", 0, ledger_id, found[0], found[-1], "damaged")] if found else []

    def damage(self, ledger_id: int, first: int, last: int) -> None:
        """Damage entries, and have a read report it."""
        self.damaged.setdefault(ledger_id, set()).update(range(first, last + 1))
        self.report(ledger_id, first, last)

    def report(self, ledger_id: int, first: int, last: int) -> None:
        self.healer.on_damage(Damage("log", 0, ledger_id, first, last, "damaged"))

    async def work(self) -> None:
        """Let the healer do all that is due now."""
        task = asyncio.create_task(self.healer.run())
        await settle(50)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_damage_is_healed_in_pieces_and_verified() -> None:
    world = World()
    world.damage(7, 5, 27)
    await world.work()
    assert world.fetched == [(7, 5, 14), (7, 15, 24), (7, 25, 27)]
    assert world.metrics.healed_entries == 23
    assert world.metrics.heals_waiting == 0
    assert world.metrics.heal_attempts == 1


async def test_the_same_damage_reported_again_and_again_is_one_wound() -> None:
    world = World()
    world.damage(7, 5, 9)
    for _ in range(100):
        world.report(7, 5, 9)
        world.report(7, 6, 7)
    world.damage(7, 10, 12)
    assert world.metrics.damages == 2
    await world.work()
    assert world.fetched == [(7, 5, 12)]


async def test_what_is_not_damaged_any_more_is_left_alone() -> None:
    world = World()
    world.report(7, 5, 9)
    await world.work()
    assert world.fetched == []
    assert world.metrics.heals_waiting == 0


async def test_failures_wait_longer_and_longer_and_are_listed_once() -> None:
    world = World(heal_attempts_max=3)
    world.peers_error = ReplicasUnavailableError("away")
    world.damage(7, 5, 9)
    for attempt, now_s in enumerate((0, 10, 30, 70), start=1):
        world.now_s = now_s - 0.1
        await world.work()
        assert world.metrics.heal_attempts == attempt - 1
        world.now_s = now_s
        await world.work()
        assert world.metrics.heal_attempts == attempt
    assert world.listed == [(7, 5, 9)]
    assert world.metrics.heals_failing == 1
    world.peers_error = None
    world.now_s = 1000
    await world.work()
    assert world.metrics.healed_entries == 5
    assert world.metrics.heals_failing == world.metrics.heals_waiting == 0


async def test_what_no_other_bookie_has_is_listed_at_once() -> None:
    world = World()
    world.peers_error = NoOtherCopyError("nobody")
    world.damage(7, 5, 6)
    await world.work()
    assert world.listed == [(7, 5, 6)]
    assert world.metrics.heals_waiting == 1


async def test_a_flush_that_fails_heals_nothing() -> None:
    world = World()
    world.flush_error = StorageIOError("the disk is full")
    world.damage(7, 5, 6)
    await world.work()
    assert world.metrics.heals_waiting == 1


async def test_a_deleted_ledger_and_entries_of_others_are_not_healed() -> None:
    world = World()
    world.is_deleted = True
    world.damage(7, 5, 6)
    await world.work()
    assert world.metrics.heals_waiting == 0

    stranger = World("b9")
    stranger.damage(7, 5, 6)
    await stranger.work()
    assert stranger.fetched == []
    assert stranger.metrics.heals_waiting == 0


async def test_what_waits_is_bounded() -> None:
    world = World(heal_ledgers_max=3)
    world.peers_error = ReplicasUnavailableError("away")
    for ledger_id in range(3):
        world.damage(ledger_id, 0, 0)
    assert world.metrics.damages_dropped == 0
    world.damage(3, 0, 0)
    assert (world.metrics.damages, world.metrics.damages_dropped) == (3, 1)
    # A thousand and one ranges of one ledger are joined into one that covers them all.
    for entry_id in range(0, 2002, 2):
        world.report(0, entry_id, entry_id)
    assert world.healer._wounds[0].ranges == [(0, 2000)]
