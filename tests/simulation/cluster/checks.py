"""All invariants of a cluster: those of the ledger protocol, of topics, and of re-replication."""

from tests.simulation import checks
from tests.simulation.cluster import checks_cursors, checks_repair, checks_topics
from tests.simulation.record import Record, Violation

PARTS = (checks_topics, checks_cursors, checks_repair)
"""Importing them registers their invariants."""


def judge_cluster(run: Record) -> list[Violation]:
    """What does not hold; a few examples for each invariant."""
    return checks.judge(run)
