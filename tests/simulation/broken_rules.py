"""Rules that were broken by hand, one at a time, and what notices each: the table of the document.

`python -m tests.simulation.broken_rules` writes it into docs/simulation.md. Each rule is a mutation
of one of the three families, so that its catch is stored, and replayed by their tests. Those of the
real disk are switched off inside of their own test.
"""

import sys
from collections.abc import Iterator
from dataclasses import dataclass

from tests.simulation import mutate as ledgers
from tests.simulation.cluster import mutate as clusters
from tests.simulation.cluster.mutations.registry import MUTATIONS as OF_CLUSTERS
from tests.simulation.mutations.mutation import Mutation
from tests.simulation.mutations.registry import MUTATIONS as OF_LEDGERS
from tests.simulation.mutations.searching import put_into_document
from tests.simulation.mutations.storage_registry import STORAGE_MUTATIONS as OF_STORAGE
from tests.simulation.storing import mutate as storage

RUNS_MAX = 100
_SYNCS = "test_syncs.py"

REVIEWED = (
    "confirmed_below_the_ack_quorum",
    "entries_say_that_the_one_before_is_confirmed",
    "fragments_begin_one_entry_late",
    "one_fence_less",
    "an_undecided_entry_ends_the_ledger",
    "recovery_reads_one_run",
    "replacements_lack_the_first_waiting_add",
    "replacements_count_as_having_the_first_waiting_add",
    "the_first_bookie_is_not_fenced",
    "recovery_closes_with_the_length_at_the_lac",
    "fence_of_an_unknown_ledger_is_not_written",
    "ledgers_with_a_fence_on_its_way_are_evicted",
    "a_bookies_lac_moves_back",
    "fenced_is_taken_for_a_failed_bookie",
    "marks_before_the_flush",
    "replay_forgets_lacs",
    "replay_forgets_the_last_record",
    "decided_compactions_move_nothing",
    "places_stay_known_after_a_compaction",
    "journal_files_deleted_by_the_largest_mark",
    "unreadable_metadata_means_deleted",
    "a_listing_that_failed_goes_on",
    "batches_behind_a_full_group_are_committed",
    "groups_reported_before_their_sync",
    "groups_reported_beside_their_sync",
    "trimming_forgets_deduplication",
    "deduplication_replays_one_read",
    "snapshots_one_entry_ahead",
    "cursors_recovered_from_their_first_record",
    "cursors_roll_back_on_any_error",
    "cursors_taken_over_without_a_new_epoch",
    "closed_without_their_cursors",
    "handed_over_without_a_drain",
    "terms_do_not_count",
    "topics_are_kept_over_the_end_of_a_term",
    "dropped_logs_go_on",
    "members_swapped_before_the_copies",
    "refused_copies_count",
    "last_entries_are_not_copied",
    "transactions_decided_before_that_is_durable",
)
"""Mutations from a review of reliability."""

OF_THE_DISK = {
    "data of a file are not synced": "test_a_sync_that_is_left_out_is_noticed",
    "a file that replaces another is not synced": "test_a_sync_that_is_left_out_is_noticed",
    "a directory is not synced": "test_a_sync_that_is_left_out_is_noticed",
}
"""Three more of it: what no simulator sees, and the test that does."""

MORE = (
    "proofs_count_from_their_answers",
    "losses_that_a_lookup_meets_are_not_told",
    "leases_of_split_bundles_are_kept",
    "lost_leases_keep_their_topics",
    "snapshots_leave_out_who_has_gone",
    "undecided_counts_as_stored",
    "producers_are_told_what_is_under_way",
    "positions_count_as_stored_at_once",
    "nodes_name_cursor_ledgers_too_soon",
    "resets_leave_the_old_position_to_trimming",
    "a_part_of_a_batch_acknowledges_it",
    "acknowledgements_beyond_the_end_count",
    "every_chunk_counts",
    "retained_ledgers_go",
    "takeovers_believe_the_list",
    "removed_ledgers_are_not_remembered",
    "messages_of_consumers_that_went_are_forgotten",
    "standbys_are_served",
    "open_transactions_are_visible",
    "items_go_whatever_the_repair_left",
    "holes_count_as_whole",
    "trimmed_before_all_cursors_are_open",
)
"""Others, of ownership, topics, cursors, deduplication, trimming, logs and auto-recovery."""


@dataclass(frozen=True, slots=True)
class Noticed:
    """The simulator and the tests that notice a broken rule."""

    description: str
    simulator: str
    """The simulator that notices, and by what; empty: none does."""
    runs: int
    tests: tuple[str, ...]

    @property
    def is_noticed(self) -> bool:
        return bool(self.simulator or self.tests)


def noticed(name: str) -> Noticed:
    """What is stored of the mutation.

    Raises:
        KeyError: it is in no family, or was not searched for.
    """
    if name in (each.name for each in OF_LEDGERS):
        found = ledgers.SEARCH.load()[name]
        by = f"ledgers: {', '.join(found.reasons)}" if found.plan is not None else ""
        return Noticed(_described(OF_LEDGERS, name), by, found.runs, found.tests)
    if name in (each.name for each in OF_CLUSTERS):
        caught = clusters.SEARCH.load()[name]
        by = f"clusters: {', '.join(caught.reasons)}" if caught.plan is not None else ""
        return Noticed(_described(OF_CLUSTERS, name), by, caught.runs, caught.tests)
    stored = storage.load()[name]
    by = f"storage: {storage.how(stored)}" if stored.by else ""
    return Noticed(_described(OF_STORAGE, name), by, 0, stored.tests)


def _described(family: list[Mutation], name: str) -> str:
    return next(each.description for each in family if each.name == name)


def table() -> str:
    lines = ["| # | Rule that is broken | Noticed by | After runs |", "|---|---|---|---|"]
    number = 0
    for names, disk in ((REVIEWED, OF_THE_DISK), (MORE, {})):
        for name in names:
            number += 1
            found = noticed(name)
            who = "; ".join([*filter(None, [found.simulator]), *_shown(found)])
            runs = str(found.runs) if found.simulator and found.runs else "-"
            lines.append(f"| {number} | `{name}`: {found.description} | {who} | {runs} |")
        for description, test in disk.items():
            number += 1
            lines.append(f"| {number} | {description} | `{test}` (`{_SYNCS}`) | - |")
    return "\n".join(lines) + "\n"


def _shown(found: Noticed) -> Iterator[str]:
    """Tests, where nothing else notices."""
    if not found.simulator:
        yield from (f"`{name}`" for name in found.tests)


def main() -> int:
    put_into_document("broken rules", table())
    return 0


if __name__ == "__main__":
    sys.exit(main())
