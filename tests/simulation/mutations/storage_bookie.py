"""The rules of a bookie around its storage: dead ledgers, registration, cookies (sections 9 to 12).

Nothing of this is in the lives of one bookie: its metadata store does not lie, and nobody else is
there. The tests of the defects notice them.
"""

from magnetar.bookie.bookie import Bookie
from magnetar.bookie.gc.dead_ledgers import DeadLedgerSearch
from magnetar.bookie.gc.ledger_collector import LedgerCollector, LedgerSource
from magnetar.bookie.gc.over_replicated import OverReplicatedLedgers
from magnetar.bookie.requests.fencing import LedgerTable
from magnetar.bookie.server import BookieServer
from magnetar.ledger.registration import BookieRegistry
from tests.simulation.mutations.mutation import Mutation, edited, replaced


async def _late_candidates(
    self: LedgerCollector, source: LedgerSource, *, accept_vanished: bool = False
) -> list[int]:
    listed: set[int] = set()
    async for found in source.ledger_ranges():
        listed.update(found.ledger_ids)
    return sorted(set(self._storage.ledger_ids()) - listed)


MUTATIONS: list[Mutation] = [
    Mutation(
        name="dead_ledgers_are_not_confirmed",
        rule="10.1",
        defects=("B10",),
        description="a ledger that a listing lacks is deleted without a direct look",
        apply=lambda: edited(
            LedgerCollector,
            "_is_dead",
            ("    await self._calls.wait_turn()\n", "    return True\n"),
        ),
    ),
    Mutation(
        name="implausible_listings_are_believed",
        rule="10.2",
        defects=("B10",),
        description="there is no brake: a listing that lacks all ledgers is as good as any",
        apply=lambda: edited(
            DeadLedgerSearch, "candidates", ("if brake is not None:", "if False:")
        ),
    ),
    Mutation(
        name="gaps_in_a_listing_are_believed",
        rule="10.1",
        defects=("B10",),
        description="ranges of a listing need not follow one another",
        apply=lambda: edited(
            DeadLedgerSearch,
            "on_range",
            ("if found.first_id != self._next_id or found.last_id < found.first_id:", "if False:"),
        ),
    ),
    Mutation(
        name="local_ledgers_are_listed_last",
        rule="10.1",
        defects=("B11",),
        description="the local ledgers are looked at behind the listing of the metadata",
        apply=lambda: replaced(LedgerCollector, "candidates", _late_candidates),
    ),
    Mutation(
        name="surplus_ledgers_are_not_read_again",
        rule="10.1",
        defects=("B12",),
        description="a ledger that is elsewhere is deleted without a second look under its lock",
        apply=lambda: edited(
            OverReplicatedLedgers,
            "_look_at",
            ("if not is_surplus(metadata, self._bookie_id) or not await", "if not await"),
        ),
    ),
    Mutation(
        name="deleted_ledgers_are_forgotten",
        rule="9",
        defects=("B13",),
        description="a deleted ledger leaves no tombstone: a stale writer makes it anew, unfenced",
        apply=lambda: edited(
            LedgerTable, "delete", ("self.tombstones.put(ledger_id, now_s)", "pass")
        ),
    ),
    Mutation(
        name="registered_before_the_replay",
        rule="12",
        defects=("B21",),
        description="a bookie is registered when it has read its cookie, before any replay",
        apply=lambda: edited(
            Bookie,
            "start",
            (
                "        replayed = await replay_journals(",
                "        from magnetar.ledger.registration import BookieInfo\n"
                "        early = BookieInfo(self.bookie_id, 'localhost', 1, readonly=False)\n"
                "        await self._registry.register(early)\n"
                "        replayed = await replay_journals(",
            ),
        ),
    ),
    Mutation(
        name="old_registration_goes_first",
        rule="11",
        defects=("B22",),
        description="the registration of the other kind is removed before the new one is there",
        apply=lambda: edited(
            BookieRegistry,
            "register",
            (
                "await self._clear_registration(other, record, deadline_s, keeps_ours=True)",
                "await self._clear_registration(other, record, deadline_s)",
            ),
        ),
    ),
    Mutation(
        name="reads_under_way_are_not_bounded",
        rule="2.2, limits",
        defects=("B23",),
        description="reads are taken however much those under way hold",
        apply=lambda: edited(
            BookieServer,
            "on_reads_bytes",
            ("if self._reads_bytes >= self._reads_bytes_max:", "if False:"),
        ),
    ),
]
