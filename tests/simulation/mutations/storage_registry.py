"""The mutations of the storage, in the order of its parts, and those of a bookie that it shares."""

from tests.simulation.mutations import (
    storage_bookie,
    storage_engine,
    storage_gc,
    storage_integrity,
    storage_journal,
    storage_records,
)
from tests.simulation.mutations.mutation import Mutation
from tests.simulation.mutations.registry import mutation

SHARED: dict[str, tuple[str, ...]] = {
    "fence_in_memory_only": ("B1",),
    "replay_forgets_fences": ("B1",),
    "fence_forbids_nothing": ("B3",),
    "fenced_reads_do_not_wait_for_the_fence": ("B2",),
    "second_fence_does_not_wait": ("B2",),
    "add_confirmed_before_it_is_durable": ("B3",),
    "failed_sync_is_ignored": ("B18",),
    "master_key_is_not_journalled": ("B3",),
    "emptied_bookie_starts": ("B24",),
}
"""Mutations of the cluster simulator whose rules are also the storage's, and their defects here."""

STORAGE_MUTATIONS: list[Mutation] = [
    *(mutation(name) for name in SHARED),
    *storage_journal.MUTATIONS,
    *storage_engine.MUTATIONS,
    *storage_gc.MUTATIONS,
    *storage_bookie.MUTATIONS,
    *storage_integrity.MUTATIONS,
    *storage_records.MUTATIONS,
]

TESTS_ONLY = {
    "emptied_bookie_starts",
    *(each.name for each in (*storage_bookie.MUTATIONS, *storage_integrity.MUTATIONS)),
    *(each.name for each in storage_records.MUTATIONS if each.tests),
}
"""What no life of one bookie meets: the tests of their defects must notice them."""


def storage_mutation(name: str) -> Mutation:
    """The mutation of that name."""
    return next(each for each in STORAGE_MUTATIONS if each.name == name)


def defects_of(found: Mutation) -> tuple[str, ...]:
    """The defects of the storage sheet, "B5", that its rule prevents."""
    return SHARED.get(found.name, tuple(each for each in found.defects if each.startswith("B")))
