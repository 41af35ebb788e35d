"""The rules of the writer: add path, ensemble change, close."""

from tests.simulation.mutations.mutation import Mutation

MUTATIONS: list[Mutation] = []
