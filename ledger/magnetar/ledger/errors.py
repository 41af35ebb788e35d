"""Errors of the ledger component.

LedgerError                        root; `retryable` says whether the same call may succeed later
├── BookieProtocolError            the peer sent bytes that are not a frame of this protocol
│   └── BookieVersionError         a frame in the version of another release
├── BookieError                    one bookie could not serve a request
│   ├── BookieUnavailableError     not reachable, timed out, overloaded, disk trouble (unknown)
│   │   └── BookieSecretError      the bookie does not share the cluster's secret
│   ├── NoSuchEntryError           an explicit negative: the bookie is certain
│   ├── NoSuchLedgerOnBookieError  an explicit negative: the bookie is certain
│   └── UnauthorizedError          the ledger's password does not fit
├── SharedSecretConfigError        a file of shared secrets cannot be used
├── DigestMismatchError            stored bytes do not match their digest or their identity
├── InvalidLedgerMetadataError     metadata breaks a rule: refused, never repaired
│   ├── FutureMetadataVersionError a newer release wrote the ledger: upgrade first
│   └── FutureLogFormatError       a newer release wrote the log: upgrade first
├── NoSuchLedgerError              the metadata store has no such ledger
├── OwnerUnclearError              whether the ledger is still in use is unknown
├── ClocksApartError               clocks of this machine and the store are too far apart
├── LedgerIdsExhaustedError        the id generator has reached its end
├── LedgerLayoutError              the root belongs to another ledger manager
├── NotEnoughBookiesError          fewer writable bookies than the ensemble needs
├── LedgerFencedError              another client recovers or owns the ledger; outcome unknown
├── LedgerClosedError              the handle is closed, or another client closed the ledger
├── LedgerWriteError               an add could not reach its ack quorum; outcome unknown
├── BookieRegisteredError          the bookie to be decommissioned is running
├── NoSuchBookieError              the cluster has no bookie of this id
├── ReplicationLockLostError       the session with the lock on a ledger's replicas ended
├── RecoveryUndecidedError         too few bookies answered to tell where the ledger ends
├── BeyondLastConfirmedError       a read above what is confirmed
├── ObjectError                    a ledger in an object store
│   ├── ObjectDamagedError         changed bytes, or another ledger's: never used
│   ├── ObjectIncompleteError      the ledger to copy could not be read to its end
│   ├── LedgersLeftError           some ledgers of a log were not copied, or not forgotten
│   ├── FutureObjectVersionError   a newer release wrote it
│   ├── ObjectMissingError         the store is certain that there is no such object
│   ├── ObjectKeyConfigError       a file of keys for objects cannot be used
│   ├── ObjectKeyError             the key of an encrypted object is missing or another
│   ├── ObjectKeyReusedError       a data key for two blocks with one nonce: a fault of the program
│   ├── ObjectStoreConfigError     settings or installation open no store
│   ├── ObjectStoreUnavailableError  no answer, or one that proves nothing (outcome unknown)
│   └── ObjectStoreRefusedError    wrong credentials, no permission, or no such bucket
├── LogError                       the managed log
│   ├── LogFencedError             another owner took the log over
│   ├── LogClosedError             this handle is closed
│   ├── LogTerminatedError         the log takes no more appends, ever
│   ├── LogExistsError             the log to create exists
│   ├── NoSuchLogError             the log to open does not exist
│   ├── LogTrimmedError            the next entry to read was removed from the log
│   ├── LogDataLossError           a listed ledger has no metadata any more
│   ├── UnknownMessageFormatError  an entry holds no messages of a known format
│   ├── MessageTooLargeError       messages beyond the bounds of an entry
│   └── LogUnavailableError        a ledger could not be opened or created just now
└── MetadataError                  the metadata store
    ├── NoNodeError, NodeExistsError, NotEmptyError, BadVersionError
    ├── InvalidPathError, ValueTooLargeError
    ├── MetadataAccessError        the node belongs to another user: nothing was changed
    ├── ContendedError             others changed the node at each try (nothing was changed)
    ├── UnknownOutcomeError        a write may or may not have happened: re-read and compare
    ├── MetadataUnavailableError   not connected, or no answer in time (nothing was changed)
    ├── MetadataDamagedError       stored bytes are not what was written: never used
    └── SessionExpiredError        the session and its ephemeral nodes are gone

InvariantError                     a rule that protects stored data does not hold: a defect
"""


class LedgerError(Exception):
    """Root of the component's errors."""

    retryable = False


class InvariantError(AssertionError):
    """A rule that protects stored data does not hold: a defect in the code, and nothing is done.

    Raise it instead of an `assert` statement where data would be lost or overwritten without the
    check, since `python -O` leaves out these statements.
    """


class BookieProtocolError(LedgerError):
    """Bytes that are no valid frame of the bookie protocol."""


class BookieVersionError(BookieProtocolError):
    """A frame of the bookie protocol in a version that this release does not speak. The attributes
    hold the header's fields, which are the same in all versions."""

    def __init__(
        self, message: str, *, op: int, request_id: int, ledger_id: int, entry_id: int
    ) -> None:
        super().__init__(message)
        self.op = op
        self.request_id = request_id
        self.ledger_id = ledger_id
        self.entry_id = entry_id


class BookieError(LedgerError):
    """One bookie could not serve a request."""


class BookieUnavailableError(BookieError):
    """No answer, or an answer that proves nothing: never evidence that data is absent."""

    retryable = True


class BookieSecretError(BookieUnavailableError):
    """The bookie and this client do not know the same shared secret, or only one of them has any:
    `shared_secret_file` must be the same on both sides."""


class SecretRefusedError(ConnectionError):
    """The peer refused a connection in the handshake of the shared secret."""


class WrongBookieError(ConnectionError):
    """Another bookie than the intended one answers at the address."""


class SharedSecretConfigError(LedgerError):
    """A file of shared secrets cannot be used; the message says which file, and why."""


class NoSuchEntryError(BookieError):
    """The bookie is certain that it does not hold the entry."""


class NoSuchLedgerOnBookieError(BookieError):
    """The bookie is certain that it holds nothing of the ledger."""


class UnauthorizedError(BookieError):
    """The master key does not match the one that the ledger was created with."""


class DigestMismatchError(LedgerError):
    """An entry packet has a wrong digest, ledger id or entry id."""


class InvalidLedgerMetadataError(LedgerError):
    """Ledger metadata breaks a rule. It is refused, never repaired."""


class FutureMetadataVersionError(InvalidLedgerMetadataError):
    """A newer release wrote the ledger's metadata. Upgrade this release to use the ledger."""


class FutureLogFormatError(InvalidLedgerMetadataError):
    """A newer release wrote the log's node. Upgrade this release to use the log."""


class NoSuchLedgerError(LedgerError):
    """The metadata store has no such ledger."""


class OwnerUnclearError(LedgerError):
    """Whether a ledger is still in use is unknown: the owner that its custom metadata names does
    not answer, or is unknown."""


class ClocksApartError(LedgerError):
    """The clocks of this machine and of the metadata store are so far apart that one is wrong."""


class LedgerIdsExhaustedError(LedgerError):
    """The id generator has counted beyond the largest ledger id."""


class LedgerLayoutError(LedgerError):
    """The root belongs to another ledger manager, or has a ledger where this layout has none."""


class NotEnoughBookiesError(LedgerError):
    """Fewer writable bookies are registered than the ensemble needs."""

    retryable = True


class LedgerFencedError(LedgerError):
    """Another client fenced the ledger. That client decides whether pending adds survive."""


class LedgerClosedError(LedgerError):
    """The ledger takes no more adds."""


class LedgerWriteError(LedgerError):
    """An add failed on too many bookies. It may still appear after recovery."""


class EntryTooLargeError(LedgerWriteError):
    """A payload is above `entry_bytes_max`; nothing was written, and never will be."""


class RecoveryUndecidedError(LedgerError):
    """Too few bookies answered to decide where the ledger ends. Try again later."""

    retryable = True


class BookieRegisteredError(LedgerError):
    """The bookie is registered: it cannot be recovered or decommissioned while it runs."""


class NoSuchBookieError(LedgerError):
    """No cookie has this id: the bookie never existed, or was decommissioned already."""


class ReplicationLockLostError(LedgerError):
    """The lock is lost: another process may copy or drop the ledger's replicas by now."""

    retryable = True


class BeyondLastConfirmedError(LedgerError):
    """The entry is above the last add confirmed that this reader knows."""


class ObjectError(LedgerError):
    """A ledger in an object store."""


class ObjectDamagedError(ObjectError):
    """The store returned bytes that fail their checksum, or that belong to another object. A second
    request may return the right bytes. If it does not, read the entries from another copy."""


class ObjectIncompleteError(ObjectError):
    """A ledger to be copied could not be read to its end."""

    retryable = True


class LedgersLeftError(ObjectError):
    """Some ledgers of a log could not be copied to an object store, or not be deleted from bookies.
    Each is tried again after its own pause. Unnamed ledgers were done, unless `is_ended`: after too
    many failures in a row, the remaining ledgers were not tried."""

    retryable = True

    def __init__(self, text: str, *, is_ended: bool) -> None:
        super().__init__(text)
        self.is_ended = is_ended


class FutureObjectVersionError(ObjectError):
    """A newer release wrote the object. Read it with that release."""


class ObjectMissingError(ObjectError):
    """The store is certain that there is no such object."""


class ObjectKeyConfigError(ObjectError):
    """A file of keys for objects cannot be used. The message says which file, and what is wrong; it
    shows no key. An operator has to correct the file."""


class ObjectKeyError(ObjectError):
    """An object is encrypted with a key that this process lacks, or for which it has another value.
    Other objects can be read. An operator has to add the key, and restart the process."""

    def __init__(self, text: str, *, key_id: str = "") -> None:
        super().__init__(text)
        self.key_id = key_id


class ObjectKeyReusedError(ObjectError):
    """A data key would encrypt a second block with the same nonce, which would show both. That is a
    fault of this program: nothing was written; another attempt has another data key."""


class ObjectStoreConfigError(ObjectError):
    """An object store cannot be opened: its URL or another setting is wrong, or a package is not
    installed. No request was made. An operator has to correct this."""


class ObjectStoreUnavailableError(ObjectError):
    """The store gave no answer, or one that proves nothing. It is never evidence that data is
    absent. A write may have happened."""

    retryable = True


class ObjectStoreRefusedError(ObjectError):
    """The store refuses access: wrong credentials, no permission, or no such bucket. An operator
    has to correct this."""


class LogError(LedgerError):
    """Root of the managed log's errors."""


class LogFencedError(LogError):
    """Another owner has taken the log over; this handle is of no further use."""


class LogClosedError(LogError):
    """The log handle is closed."""


class LogTerminatedError(LogError):
    """The log was terminated: it is complete, and can only be read."""


class LogExistsError(LogError):
    """A log exists at the path already: open it, or choose another path."""


class NoSuchLogError(LogError):
    """There is no log at the path: create it first, or check the path."""


class LogTrimmedError(LogError):
    """A shrink removed the reader's next entry. `first` is where the log begins now."""

    def __init__(self, message: str, first: tuple[int, int]) -> None:
        super().__init__(message)
        self.first = first


class UnknownMessageFormatError(LogError):
    """An entry whose bytes are not messages, or are messages of an unknown format."""


class MessageTooLargeError(LogError):
    """A message, or the messages of one entry, exceed a limit; nothing was written."""


class LogDataLossError(LogError):
    """A ledger of the log is gone from the metadata store."""


class LogUnavailableError(LogError):
    """A ledger could not be created or recovered just now."""

    retryable = True


class MetadataError(LedgerError):
    """Root of the metadata stores' errors."""


class NoNodeError(MetadataError):
    """The path has no node."""


class NodeExistsError(MetadataError):
    """The path has a node already."""


class NotEmptyError(MetadataError):
    """The node has children."""


class BadVersionError(MetadataError):
    """The node changed after the read that the write was based on."""


class ContendedError(MetadataError):
    """Other writers changed the node at each of the limited attempts; nothing was changed."""

    retryable = True


class InvalidPathError(MetadataError):
    """A path or URL cannot be used."""


class MetadataAccessError(MetadataError):
    """The store refuses this user to read or change the node; nothing was changed."""


class ValueTooLargeError(MetadataError):
    """A value exceeds what a node may hold."""


class UnknownOutcomeError(MetadataError):
    """The connection broke during a write: read again and compare before continuing."""

    retryable = True


class MetadataUnavailableError(MetadataError):
    """The store did not answer in time; nothing was changed."""

    retryable = True


class MetadataDamagedError(MetadataError):
    """The store's own files are not as they were written. They are not used."""


class SessionExpiredError(MetadataError):
    """The session has ended, and its ephemeral nodes with it."""
