"""The rules of the managed log."""

from tests.simulation.mutations.mutation import Mutation

MUTATIONS: list[Mutation] = []
