"""Errors of the cursors component.

CursorError                     root; `retryable` says whether the same call may succeed later
├── NoSuchCursorError           the cursor does not exist, and no initial position was given
├── InvalidCursorNameError      a name that cannot be stored
├── CursorFencedError           another owner opened or deleted the cursor; this handle is dead
├── CursorClosedError           this handle is closed
├── CursorUnavailableError      ledgers or metadata cannot be reached now; nothing was decided
├── CursorStateTooLargeError    the position properties alone exceed one record
├── InvalidCursorNodeError      a metadata node that breaks the format
└── CursorRecordError           bytes that are no cursor record
    ├── CorruptCursorRecordError     damaged, or never was one
    └── UnsupportedCursorRecordError written by a newer release
"""


class CursorError(Exception):
    """Root of the component's errors."""

    retryable = False


class NoSuchCursorError(CursorError):
    """There is no cursor of that name."""


class InvalidCursorNameError(CursorError):
    """Empty, or longer than the metadata store takes."""


class CursorFencedError(CursorError):
    """Another owner has opened or deleted the cursor; this handle writes nothing any more."""


class CursorClosedError(CursorError):
    """The handle is closed."""


class CursorUnavailableError(CursorError):
    """The cursor cannot be opened or saved now. Its state is unchanged."""

    retryable = True


class CursorStateTooLargeError(CursorError):
    """What must not be left out of a record does not fit into one."""


class InvalidCursorNodeError(CursorError):
    """The metadata node of a cursor cannot be understood. It is never repaired by guess."""


class CursorRecordError(CursorError):
    """An entry of a cursor ledger that cannot be used."""


class CorruptCursorRecordError(CursorRecordError):
    """Damaged bytes, although their digest as a ledger entry was right."""


class UnsupportedCursorRecordError(CursorRecordError):
    """A record of a newer format version: only a newer release can read it."""
