"""Damage: stored bytes that differ from what was written, and the entries that they hide."""

from typing import NamedTuple


class Damage(NamedTuple):
    """A damaged place in a file, and the entries that it makes unreadable."""

    path: str
    offset: int
    """The first byte of the file that is in doubt."""
    ledger_id: int
    first: int
    last: int
    """Entries `first` to `last` of the ledger are unreadable, as far as they are stored here."""
    reason: str

    def __str__(self) -> str:
        return (
            f"{self.path} at {self.offset}: ledger {self.ledger_id} entries {self.first} to "
            f"{self.last}: {self.reason}"
        )
