"""Errors of the bookie component.

BookieServiceError                    root; `status` is its code on the wire, `retryable` says
│                                     whether the same request may succeed later
└── StorageError                      the ledger storage
    ├── NoSuchEntryInStorageError     an explicit negative: the storage is certain
    ├── NoSuchLedgerInStorageError    an explicit negative: the storage is certain
    ├── StorageFullError              the write cache is full; nothing was stored
    └── StorageIOError                nobody knows: never evidence that an entry is absent
        ├── StorageCorruptError       stored bytes are not what was written
        └── StorageClosedError        the storage is closed or closing
"""

from magnetar.ledger.wire import Status


class BookieServiceError(Exception):
    """Root of the component's errors."""

    status = Status.IO_ERROR
    retryable = False


class StorageError(BookieServiceError):
    """Root of the ledger storage's errors."""


class NoSuchEntryInStorageError(StorageError):
    """The ledger is known and the entry is certainly not stored here."""

    status = Status.NO_SUCH_ENTRY


class NoSuchLedgerInStorageError(StorageError):
    """Nothing is stored of the ledger, not even its state."""

    status = Status.NO_SUCH_LEDGER


class StorageFullError(StorageError):
    """The write cache is full and the flush does not keep up. Nothing was stored."""

    status = Status.TOO_MANY_REQUESTS
    retryable = True


class StorageIOError(StorageError):
    """A file or the index could not be read or written. Says nothing about what is stored."""

    retryable = True


class StorageCorruptError(StorageIOError):
    """Bytes of an entry log or of the index that cannot be what was written there."""

    retryable = False


class StorageClosedError(StorageIOError):
    """The storage was closed; the answer is unknown."""
