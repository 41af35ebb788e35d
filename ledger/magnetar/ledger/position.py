"""Positions in a managed log: (ledger id, entry id), ordered lexicographically.

A position with entry id -1 is before the first entry of its ledger. Nothing here does I/O or knows
which ledgers exist. Source: the managed-ledger model of Apache Pulsar.
"""

from typing import NamedTuple


class Position(NamedTuple):
    """A position in a managed log. Tuples compare lexicographically, which is log order."""

    ledger_id: int
    entry_id: int

    def __str__(self) -> str:
        return f"{self.ledger_id}:{self.entry_id}"


EARLIEST = Position(-1, -1)
"""Before every entry."""

LATEST = Position((1 << 63) - 1, (1 << 63) - 1)
"""After every entry."""
