"""The rules of readers."""

from tests.simulation.mutations.mutation import Mutation

MUTATIONS: list[Mutation] = []
