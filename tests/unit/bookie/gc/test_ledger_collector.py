"""Ledgers that a bookie deletes: only those whose metadata is certainly gone (B10, B11)."""

from collections.abc import Sequence

import pytest

from magnetar.bookie.errors import ForeignMetadataError, ImplausibleListingError
from magnetar.bookie.gc.dead_ledgers import Brake
from magnetar.bookie.gc.ledger_collector import UNRECORDED_MAX, LedgerCollector
from magnetar.bookie.metrics import GcMetrics
from magnetar.bookie.requests.fencing import LedgerTable
from magnetar.bookie.storage import LedgerState
from magnetar.ledger.errors import InvariantError, LedgerError
from magnetar.ledger.layouts.ledger_layout import LedgerRange
from magnetar.ledger.ledger_metadata import LEDGER_ID_MAX
from magnetar.ledger.system import SystemClock
from tests.bookie_parts import KEY, MemoryStorage
from tests.garbage import Ledgers, Lie, metadata_calls, store_of_cluster

PATIENCE_S = 100.0
STATE = LedgerState(KEY, fenced=False, last_add_confirmed=-1)


class ManualClock(SystemClock):
    """Stands still until a test moves it."""

    def __init__(self) -> None:
        self.now_s = 1000.0

    def monotonic_s(self) -> float:
        return self.now_s


class Bookie:
    """A bookie with these ledgers, in a cluster with those."""

    def __init__(
        self, local: Sequence[int], listed: Sequence[int], *, share_max: float = 0.5
    ) -> None:
        self.storage = MemoryStorage()
        self.cluster = Ledgers(listed)
        self.store = store_of_cluster()
        self.metrics = GcMetrics()
        self.clock = ManualClock()
        self.table = LedgerTable(self.storage)
        self.collector = LedgerCollector(
            self.storage,
            self.table,
            calls=metadata_calls(self.store),
            brake=Brake(vanish_share_max=share_max, ledgers_min=10, patience_s=PATIENCE_S),
            clock=self.clock,
            metrics=self.metrics,
        )
        for ledger_id in local:
            self.make(ledger_id)

    def make(self, ledger_id: int) -> None:
        self.storage.put_state(ledger_id, STATE)

    async def collect(self, *, accept_vanished: bool = False) -> list[int]:
        """The ledgers that are left."""
        await self.collector.collect(self.cluster, accept_vanished=accept_vanished)
        return self.storage.ledger_ids()

    async def refuses(self, error: type[Exception]) -> None:
        """A collection fails, and nothing was deleted."""
        before = self.storage.ledger_ids()
        with pytest.raises(error):
            await self.collect()
        assert self.storage.ledger_ids() == before


async def test_ledgers_without_metadata_are_deleted_durably() -> None:
    bookie = Bookie(range(20), [*range(15), 100])
    assert await bookie.collect() == list(range(15))
    assert (bookie.storage.flushes, bookie.metrics.deleted_ledgers) == (1, 5)
    assert bookie.table.was_deleted(15)


async def test_nothing_is_flushed_when_nothing_was_deleted() -> None:
    bookie = Bookie(range(5), range(9))
    assert await bookie.collect() == list(range(5))
    assert bookie.storage.flushes == 0


async def test_rule_10_1_a_ledger_that_only_the_listing_lacks_stays() -> None:
    bookie = Bookie(range(20), range(20))
    bookie.cluster.lie = lambda ranges: [
        LedgerRange(each.first_id, each.last_id, each.ledger_ids[:-3]) for each in ranges
    ]
    assert await bookie.collect() == list(range(20))
    assert bookie.metrics.listed_in_error == 3


async def test_rule_10_1_an_error_is_no_proof_of_death() -> None:
    bookie = Bookie(range(20), range(15))
    bookie.cluster.failing = {16, 18}
    assert await bookie.collect() == [*range(15), 16, 18]
    assert bookie.metrics.unconfirmed_ledgers == 2


async def test_a_ledger_that_the_metadata_lost_is_no_garbage() -> None:
    bookie = Bookie(range(20), range(15))
    bookie.cluster.lost = {16, 18}
    assert await bookie.collect() == [*range(15), 16, 18]
    assert bookie.metrics.unrecorded_ledgers == 2
    assert await bookie.collect(accept_vanished=True) == list(range(15))


async def test_a_share_of_one_accepts_what_the_metadata_lost() -> None:
    bookie = Bookie(range(20), [], share_max=1.0)
    bookie.cluster.lost = {3}
    assert await bookie.collect() == []


@pytest.mark.parametrize("listed", [[], [0], range(40)], ids=["none", "one", "less than half"])
async def test_where_deletions_are_recorded_any_share_of_the_ledgers_goes(
    listed: Sequence[int],
) -> None:
    """As after the deletion of the one large topic: each ledger has its record."""
    bookie = Bookie(range(100), listed)
    assert await bookie.collect() == list(listed)
    assert bookie.metrics.brakes == 0


async def test_a_round_ends_at_many_ledgers_that_the_metadata_lost() -> None:
    bookie = Bookie(range(UNRECORDED_MAX + 50), [])
    bookie.cluster.lost = set(range(1, UNRECORDED_MAX + 50))
    with pytest.raises(ImplausibleListingError, match="without a record"):
        await bookie.collect()
    assert bookie.storage.ledger_ids() == list(range(1, UNRECORDED_MAX + 50))
    assert len(bookie.cluster.reads) == UNRECORDED_MAX + 1


async def test_a_round_goes_on_below_that_many() -> None:
    bookie = Bookie(range(UNRECORDED_MAX + 50), [])
    bookie.cluster.lost = set(range(1, UNRECORDED_MAX))
    assert await bookie.collect() == list(range(1, UNRECORDED_MAX))


async def test_most_of_few_ledgers_must_be_missing_for_a_while() -> None:
    bookie = Bookie(range(4), [0])
    bookie.cluster.records_deletions = False
    assert await bookie.collect() == [0, 1, 2, 3]
    assert bookie.metrics.brakes == 1
    bookie.clock.now_s += PATIENCE_S - 1
    assert await bookie.collect() == [0, 1, 2, 3]
    bookie.clock.now_s += 1
    assert await bookie.collect() == [0]


async def test_a_ledger_that_comes_back_has_to_be_missing_anew() -> None:
    bookie = Bookie(range(5), [0])
    bookie.cluster.records_deletions = False
    await bookie.collect()
    bookie.cluster.metadata[1] = bookie.cluster.metadata[0]
    bookie.clock.now_s += PATIENCE_S / 2
    await bookie.collect()
    del bookie.cluster.metadata[1]
    await bookie.collect()
    bookie.clock.now_s += PATIENCE_S / 2
    assert await bookie.collect() == [0, 1]


async def test_few_of_few_ledgers_go_at_once() -> None:
    bookie = Bookie(range(4), [0, 1])
    bookie.cluster.records_deletions = False
    assert await bookie.collect() == [0, 1]


async def test_ledgers_that_are_listed_are_not_asked_for() -> None:
    bookie = Bookie(range(20), range(15))
    await bookie.collect()
    assert bookie.cluster.reads == [15, 16, 17, 18, 19]


async def test_b11_a_ledger_made_while_the_listing_runs_is_not_collected() -> None:
    bookie = Bookie(range(3), range(3))

    def make(at: int) -> None:
        if at == 1:  # behind the range that it belongs to
            bookie.cluster.metadata[50] = bookie.cluster.metadata[0]
            bookie.make(50)

    bookie.cluster.on_range = make
    assert await bookie.collect() == [0, 1, 2, 50]
    assert bookie.cluster.reads == []


async def test_a_metadata_server_that_is_behind_kills_no_new_ledger() -> None:
    bookie = Bookie(range(20), range(20))
    bookie.cluster.unseen = {18, 19}
    assert await bookie.collect() == list(range(20))


def lexicographic(ranges: list[LedgerRange]) -> list[LedgerRange]:
    ids = [each for found in ranges for each in found.ledger_ids]
    return [LedgerRange(0, LEDGER_ID_MAX, tuple(sorted(ids, key=str)))]


LIES: dict[str, Lie] = {
    "lexicographic order": lexicographic,
    "the first range is missing": lambda ranges: ranges[1:],
    "a range in the middle is missing": lambda ranges: [ranges[0], *ranges[2:]],
    "the end is missing": lambda ranges: ranges[:-1],
    "no ranges": lambda ranges: [],
    "empty": lambda ranges: [LedgerRange(0, LEDGER_ID_MAX, ())],
    "a range twice": lambda ranges: [ranges[0], *ranges],
    "backwards": lambda ranges: ranges[::-1],
    "the first range is empty": lambda ranges: [
        LedgerRange(ranges[0].first_id, ranges[0].last_id, ()),
        *ranges[1:],
    ],
}


@pytest.mark.parametrize("lie", LIES.values(), ids=LIES.keys())
async def test_b10_a_listing_that_lies_deletes_nothing(lie: Lie) -> None:
    bookie = Bookie([*range(80), *range(200, 220)], range(300))
    bookie.cluster.records_deletions = False
    bookie.cluster.lie = lie
    await bookie.refuses(ImplausibleListingError)
    assert bookie.cluster.reads == []


async def test_b10_a_listing_that_breaks_off_with_an_error_deletes_nothing() -> None:
    bookie = Bookie(range(20), range(15))

    def fail(at: int) -> None:
        if at == 1:
            raise LedgerError("connection lost")

    bookie.cluster.on_range = fail
    await bookie.refuses(LedgerError)


async def test_b10_a_listing_that_the_manager_itself_finds_broken_deletes_nothing() -> None:
    bookie = Bookie(range(20), range(15))

    def fail(at: int) -> None:
        raise InvariantError("not in numeric order")

    bookie.cluster.on_range = fail
    await bookie.refuses(ImplausibleListingError)


async def test_rule_10_2_a_metadata_store_that_forgot_most_ledgers_deletes_nothing() -> None:
    """As one that was restored from an old backup: each ledger is explicitly unknown."""
    bookie = Bookie(range(100), range(49))
    bookie.cluster.records_deletions = False
    await bookie.refuses(ImplausibleListingError)


async def test_rule_10_2_a_person_can_say_that_they_were_deleted() -> None:
    bookie = Bookie(range(100), [0])
    bookie.cluster.records_deletions = False
    assert await bookie.collect(accept_vanished=True) == [0]


async def test_rule_10_2_each_is_confirmed_even_then() -> None:
    bookie = Bookie(range(100), range(100))
    bookie.cluster.lie = lambda ranges: [LedgerRange(0, LEDGER_ID_MAX, ())]
    assert await bookie.collect(accept_vanished=True) == list(range(100))


@pytest.mark.parametrize("found", [b"f" * 32, None])
async def test_rule_10_2_the_metadata_of_another_cluster_deletes_nothing(
    found: bytes | None,
) -> None:
    bookie = Bookie(range(20), range(15))
    del bookie.store.nodes["/ledgers/INSTANCEID"]
    if found is not None:
        bookie.store.nodes["/ledgers/INSTANCEID"] = found
    await bookie.refuses(ForeignMetadataError)
    assert ("/ledgers/INSTANCEID" in bookie.store.nodes) is (found is not None)


async def test_rule_10_2_also_when_the_cluster_changes_while_the_listing_runs() -> None:
    bookie = Bookie(range(20), range(15))

    def change(at: int) -> None:
        bookie.store.nodes["/ledgers/INSTANCEID"] = b"e" * 32

    bookie.cluster.on_range = change
    await bookie.refuses(ForeignMetadataError)
