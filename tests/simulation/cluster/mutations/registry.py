"""All mutations of clusters, by name."""

from tests.simulation.cluster.mutations import (
    cursors,
    owners,
    repairs,
    serving,
    terms,
    trimming,
)
from tests.simulation.mutations.mutation import Mutation

MUTATIONS: list[Mutation] = [
    *owners.MUTATIONS,
    *terms.MUTATIONS,
    *cursors.MUTATIONS,
    *serving.MUTATIONS,
    *repairs.MUTATIONS,
    *trimming.MUTATIONS,
]

_BY_NAME = {each.name: each for each in MUTATIONS}
assert len(_BY_NAME) == len(MUTATIONS)


def mutation(name: str) -> Mutation:
    return _BY_NAME[name]
