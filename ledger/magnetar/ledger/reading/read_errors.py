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
"""What one replica may answer a read with."""

_BY_PRECEDENCE = (
    DigestMismatchError,
    BookieProtocolError,
    BookieUnavailableError,
    # Behind what a retry may help with: another replica may yet take the key.
    UnauthorizedError,
)


def is_negative(error: LedgerError) -> bool:
    """Whether the bookie is certain that it does not have what was asked for."""
    return isinstance(error, NoSuchEntryError | NoSuchLedgerOnBookieError)


def worst_error(errors: Sequence[LedgerError], ledger_id: int, entry_id: int) -> LedgerError:
    """Real trouble before unavailability before absence.

    An outage must never look like absence: only when every replica gave an explicit negative, the
    entry does not exist.
    """
    for kind in _BY_PRECEDENCE:
        for error in errors:
            if isinstance(error, kind):
                return error
    return NoSuchEntryError(
        f"ledger {ledger_id}, entry {entry_id}: every replica says that it does not exist"
    )
