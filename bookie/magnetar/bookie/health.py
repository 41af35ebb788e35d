"""What a bookie says of itself: what it does not do, and whether that makes it unwell. Pure.

A bookie that is read-only is well: it serves what it has, and says why it takes no more. It is not
well while nobody can find it, or while what it promises to take cannot be written.
"""

from collections.abc import Sequence
from dataclasses import dataclass

OK = "ok"


@dataclass(frozen=True, slots=True)
class BookieHealth:
    """The state of a running bookie."""

    has_session: bool
    """There is contact to the metadata store."""
    registered_as: str | None
    """`writable` or `read-only`; None: not at all."""
    journals_full: int
    """Journals that could not write the last group of records they were given."""
    read_only_reasons: Sequence[str] = ()
    """Why ordinary adds are refused, in words; empty: they are taken."""

    @property
    def status(self) -> str:
        """`ok`, or in words what is wrong."""
        wrong = []
        if not self.has_session:
            wrong.append("the metadata store does not answer")
        if self.registered_as is None:
            wrong.append("the bookie is not registered")
        if self.journals_full:
            wrong.append("the journal cannot be written: its disk is full")
        return "; ".join(wrong) or OK
