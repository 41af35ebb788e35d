"""Error tree of the bookie component.

BookieServiceError                    root; `status` is its code on the wire, `retryable` says
│                                     whether the same request may succeed later
├── StorageError                      the ledger storage
│   ├── NoSuchEntryInStorageError     an explicit negative: the storage is certain
│   ├── NoSuchLedgerInStorageError    an explicit negative: the storage is certain
│   ├── StorageFullError              the write cache is full; nothing was stored
│   └── StorageIOError                outcome unknown: never evidence that an entry is absent
│       ├── StorageCorruptError       stored bytes are not what was written
│       ├── StorageLogMissingError    the index points to an entry log that is not there
│       ├── StorageBusyError          too many reads are waiting for the disk
│       └── StorageClosedError        the storage is closed or closing
├── LedgerInLimboError                entries of the ledger may be lost here: absence is not known
├── IntegrityError                    copies of entries from the other bookies
│   ├── ReplicasUnavailableError      no other replica could serve an entry at the moment
│   ├── NoOtherCopyError              every other replica is certain not to have the entry
│   ├── BeyondEndError                the ledger is closed and ends before the entry
│   └── OwnAddError                   storing a fetched entry here failed; retry later
├── BadAddError                       the packets of an add do not fit the request or each other
├── GarbageError                      garbage collection failed; nothing in use was deleted
│   ├── ImplausibleListingError       the listing of ledgers is not believed; nothing is deleted
│   └── ForeignMetadataError          the metadata is not that of our cluster; nothing is deleted
├── JournalError                      the journal
│   ├── JournalFullError              the journal's disk is full; the group was not written
│   ├── JournalFailedError            a write or sync failed: final, the process must end
│   ├── JournalCorruptError           a synced record is damaged: the bookie must not start
│   └── JournalFileMissingError       a file that replay needs is gone: it must not start
├── DiskError                         a directory of the bookie, while it runs
│   ├── DiskLostError                 it is gone, or cannot be read or written: the bookie ends
│   └── DiskFullError                 it is full, and the bookie may not be read-only: it ends
└── StartError                        the bookie cannot start; the text says what to do
    ├── DirectoryLockedError          another process uses a directory of the bookie
    ├── DirectoryUnusableError        a directory cannot be made or written
    ├── PortTakenError                another process listens on the port
    ├── OpenToAllError                beyond loopback, it needs a shared secret or TLS
    ├── WrongEngineError              the index on disk is of another kind than the settings say
    ├── CookieError                   data directory, cluster and bookie id do not belong together
    ├── HorizonDamagedError           the record of ledgers fenced before a loss is damaged
    └── RegistrationTakenError        another live process is registered under this bookie id
"""

from magnetar.bookie.entry_logs.damage import Damage
from magnetar.ledger.wire import Status


class BookieServiceError(Exception):
    """Root of the bookie component's errors."""

    status = Status.IO_ERROR
    retryable = False


class StorageError(BookieServiceError):
    """Root of the errors of the ledger storage."""


class NoSuchEntryInStorageError(StorageError):
    """The ledger is known and the entry is certainly not stored here."""

    status = Status.NO_SUCH_ENTRY


class NoSuchLedgerInStorageError(StorageError):
    """The storage certainly holds nothing of the ledger, not even its state."""

    status = Status.NO_SUCH_LEDGER


class StorageFullError(StorageError):
    """The write cache is full and the flush does not keep up. Nothing was stored."""

    status = Status.TOO_MANY_REQUESTS
    retryable = True


class StorageIOError(StorageError):
    """A file or the index could not be read or written. It says nothing about what is stored."""

    retryable = True

    def __init__(self, text: str, damage: Damage | None = None) -> None:
        super().__init__(text)
        self.damage = damage
        """The damaged place and the entries that it makes unreadable, if they are known."""


class StorageCorruptError(StorageIOError):
    """Bytes of an entry log or of the index differ from what was written there."""

    retryable = False


class StorageLogMissingError(StorageIOError):
    """The entry log that the index points to does not exist."""


class StorageBusyError(StorageIOError):
    """Too many reads wait for the disk; this one was refused before it began."""

    status = Status.TOO_MANY_REQUESTS


class StorageClosedError(StorageIOError):
    """The storage was closed; the answer is unknown."""


class LedgerInLimboError(BookieServiceError):
    """The bookie lost data, and this ledger is not restored yet: a missing entry is not proven
    absent.

    Retryable: copies come from the other replicas.
    """

    status = Status.UNKNOWN_LEDGER_STATE
    retryable = True

    def __init__(self, ledger_id: int) -> None:
        super().__init__(f"data of ledger {ledger_id} was lost here and is not complete again")


class IntegrityError(BookieServiceError):
    """Root of the errors of fetching this bookie's own entries from other bookies."""


class ReplicasUnavailableError(IntegrityError):
    """The other replicas did not answer, failed or are damaged. It says nothing about the entry."""

    retryable = True


class NoOtherCopyError(IntegrityError):
    """Every other bookie that should have a copy says that it has none."""


class BeyondEndError(IntegrityError):
    """The entry was never confirmed, and the ledger was closed without it: no reader needs it."""


class OwnAddError(IntegrityError):
    """The bookie refused to store an entry that it had fetched."""

    retryable = True


class BadAddError(BookieServiceError):
    """The packets of an add are too short, out of order, or of another ledger."""

    status = Status.BAD_REQUEST


class GarbageError(BookieServiceError):
    """Root of the errors of garbage collection. Nothing that is in use was deleted."""

    retryable = True


class ImplausibleListingError(GarbageError):
    """The metadata's list of ledgers cannot be true, or differs too much from the ledgers stored
    here."""


class ForeignMetadataError(GarbageError):
    """The metadata store holds another cluster, or none: it says nothing about our ledgers."""


class JournalError(BookieServiceError):
    """Root of the journal's errors."""


class JournalFullError(JournalError):
    """No space left on the journal's disk. Nothing of the group counts as written."""

    retryable = True


class JournalFailedError(JournalError):
    """A write or a sync failed for another reason than a full disk.

    Final: the kernel may have dropped the pages, so that a later sync proves nothing.
    """


class JournalCorruptError(JournalError):
    """A record that had been synced, and so may have been acknowledged, is damaged."""


class JournalFileMissingError(JournalError):
    """A journal file that holds acknowledged records is not there."""


class DiskError(BookieServiceError):
    """Root of the errors of the disk watch. The text says what to do."""


class DiskLostError(DiskError):
    """A directory is gone, was emptied, or cannot be read or written any more."""


class DiskFullError(DiskError):
    """A ledger directory is full, and the settings forbid the bookie to be read-only."""


class StartError(BookieServiceError):
    """The bookie cannot start. The message is one line that says what to do."""


class DirectoryLockedError(StartError):
    """Another process holds the lock of a directory of the bookie."""


class DirectoryUnusableError(StartError):
    """A directory of the bookie cannot be made, locked or written."""


class PortTakenError(StartError):
    """The address to listen on is taken, or does not belong to this machine."""


class OpenToAllError(StartError):
    """A bookie must not listen beyond loopback without a shared secret or TLS (see `insecure`)."""


class WrongEngineError(StartError):
    """The index on disk belongs to the other engine: convert it, or set that engine."""


class CookieError(StartError):
    """The data directory, the cluster's metadata and the bookie id do not belong together."""


class HorizonDamagedError(StartError):
    """The file that records which ledgers were fenced before a loss of data is damaged."""


class RegistrationTakenError(StartError):
    """A live session of another process holds the registration of this bookie id."""
