"""Choose the error that a read reports when no replica could serve it (rule 9.1). Pure."""

from collections.abc import Sequence

from magnetar.ledger.errors import (
    BookieProtocolError,
    BookieUnavailableError,
    DigestMismatchError,
    LedgerError,
    NoSuchEntryError,
    NoSuchLedgerOnBookieError,
    UnauthorizedError,
)

READ_ERRORS = (
    DigestMismatchError,
    BookieProtocolError,
    BookieUnavailableError,
    NoSuchEntryError,
    NoSuchLedgerOnBookieError,
    UnauthorizedError,
)
"""Errors with which one replica may answer a read."""

_BY_PRECEDENCE = (
    DigestMismatchError,
    BookieProtocolError,
    BookieUnavailableError,
    # Last, since a retry may help with the others: another replica may still take the key.
    UnauthorizedError,
)


def is_negative(error: LedgerError) -> bool:
    """Return whether the bookie is certain that it lacks the entry or the ledger."""
    return isinstance(error, NoSuchEntryError | NoSuchLedgerOnBookieError)


def worst_error(errors: Sequence[LedgerError], ledger_id: int, entry_id: int) -> LedgerError:
    """Return the error to report: damage before unavailability before absence.

    An outage must never look like absence. The entry does not exist only if every replica gave an
    explicit negative.
    """
    for kind in _BY_PRECEDENCE:
        for error in errors:
            if isinstance(error, kind):
                return error
    return NoSuchEntryError(
        f"ledger {ledger_id}, entry {entry_id}: every replica says that it does not exist"
    )
