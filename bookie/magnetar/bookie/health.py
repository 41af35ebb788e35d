"""The health of a bookie: what it refuses, and whether that counts as a fault. Pure.

A read-only bookie is healthy: it serves what it has and gives the reason why it refuses adds. It is
unhealthy while clients cannot find it, or while it cannot write adds that it should take.
"""

from collections.abc import Sequence
from dataclasses import dataclass

OK = "ok"


@dataclass(frozen=True, slots=True)
class BookieHealth:
    """The state of a running bookie."""

    has_session: bool
    """Whether the bookie has contact to the metadata store."""
    registered_as: str | None
    """`writable` or `read-only`; None if not registered."""
    journals_full: int
    """Journals whose last group of records could not be written."""
    read_only_reasons: Sequence[str] = ()
    """Reasons why ordinary adds are refused, in words; empty if they are taken."""

    @property
    def status(self) -> str:
        """`ok`, or what is wrong, in words."""
        wrong = []
        if not self.has_session:
            wrong.append("the metadata store does not answer")
        if self.registered_as is None:
            wrong.append("the bookie is not registered")
        if self.journals_full:
            wrong.append("the journal cannot be written: its disk is full")
        return "; ".join(wrong) or OK
