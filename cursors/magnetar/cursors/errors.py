"""Errors of the cursors component.

CursorError                     root; `retryable` says whether the same call may succeed later
├── NoSuchCursorError           the cursor does not exist, and no initial position was given
├── InvalidCursorNameError      the name cannot be stored
├── CursorFencedError           another owner opened or deleted the cursor; this handle ends
├── CursorClosedError           this handle is closed
├── CursorUnavailableError      ledgers or metadata cannot be reached now; call again
├── CursorStateTooLargeError    properties exceed a record or the node
├── InvalidCursorNodeError      a metadata node breaks the format
└── CursorRecordError           the bytes are not a cursor record
    ├── CorruptCursorRecordError     damaged, or never a record
    └── UnsupportedCursorRecordError written by a newer release
"""


class CursorError(Exception):
    """Root of the component's errors."""

    retryable = False


class NoSuchCursorError(CursorError):
    """No cursor has that name."""


class InvalidCursorNameError(CursorError):
    """The name is empty, or longer than the metadata store accepts."""


class CursorFencedError(CursorError):
    """Another owner has opened or deleted the cursor; this handle writes nothing any more."""


class CursorClosedError(CursorError):
    """The handle is closed."""


class CursorUnavailableError(CursorError):
    """The cursor cannot be opened, saved or deleted now; call again. No stored state was lost.

    The outcome of a save or deletion may be unknown. A failed open may have fenced the cursor
    ledger of the former owner already, which then cannot save either.
    """

    retryable = True


class CursorStateTooLargeError(CursorError):
    """The part of the state that must not be left out does not fit into a record or a node."""


class InvalidCursorNodeError(CursorError):
    """The metadata node of a cursor cannot be understood. It is never repaired by guessing."""


class CursorRecordError(CursorError):
    """An entry of a cursor ledger that cannot be used."""


class CorruptCursorRecordError(CursorRecordError):
    """The bytes are damaged, although their digest as a ledger entry was right."""


class UnsupportedCursorRecordError(CursorRecordError):
    """The record has a newer format version: only a newer release can read it."""
