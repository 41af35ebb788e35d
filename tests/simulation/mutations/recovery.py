"""The rules of recovery: fencing, reading, writing back, closing."""

from tests.simulation.mutations.mutation import Mutation

MUTATIONS: list[Mutation] = []
