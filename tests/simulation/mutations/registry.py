"""All mutations, in the order of the components. See `mutation.py` for what one is.

The tests of the defects use it, and the table of mutations.
"""

from tests.simulation.mutations import (
    bookie,
    bounds,
    cells,
    conflicts,
    counts,
    fences,
    log,
    reader,
    recovery,
    tail,
    writer,
)
from tests.simulation.mutations.mutation import Mutation

MUTATIONS: list[Mutation] = [
    *writer.MUTATIONS,
    *conflicts.MUTATIONS,
    *bounds.MUTATIONS,
    *cells.MUTATIONS,
    *recovery.MUTATIONS,
    *tail.MUTATIONS,
    *bookie.MUTATIONS,
    *fences.MUTATIONS,
    *reader.MUTATIONS,
    *log.MUTATIONS,
    *counts.MUTATIONS,
]


def mutations_of(defect: str) -> list[Mutation]:
    """Mutations of rules that prevent the defect, for example "D8"."""
    return [each for each in MUTATIONS if defect in each.defects]


def mutation(name: str) -> Mutation:
    """The mutation of that name."""
    return next(each for each in MUTATIONS if each.name == name)
