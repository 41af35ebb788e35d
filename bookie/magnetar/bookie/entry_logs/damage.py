"""Damage: stored bytes that are not what was written, and whose they are."""

from typing import NamedTuple


class Damage(NamedTuple):
    """A place in a file that is damaged, and the entries that cannot be read for it."""

    path: str
    offset: int
    """The first byte of the file that is in doubt."""
    ledger_id: int
    first: int
    last: int
    """Entries `first` to `last` of the ledger, as far as they are stored here, are unreadable."""
    reason: str

    def __str__(self) -> str:
        return (
            f"{self.path} at {self.offset}: ledger {self.ledger_id} entries {self.first} to "
            f"{self.last}: {self.reason}"
        )
