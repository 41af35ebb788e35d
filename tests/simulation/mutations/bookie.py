"""The rules of a bookie: durability, fencing, what it may deny."""

from tests.simulation.mutations.mutation import Mutation

MUTATIONS: list[Mutation] = []
