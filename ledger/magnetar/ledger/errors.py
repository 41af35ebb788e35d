"""Errors of the ledger component.

LedgerError                        root; `retryable` says whether the same call may succeed later
├── BookieProtocolError            the peer sent bytes that are no frame of ours
│   └── BookieVersionError         a frame of ours, in a version of another release
├── BookieError                    one bookie could not do it
│   ├── BookieUnavailableError     not reachable, timed out, overloaded, disk trouble (unknown)
│   │   └── BookieSecretError      the bookie does not share the cluster's secret with us
│   ├── NoSuchEntryError           an explicit negative: the bookie is certain
│   ├── NoSuchLedgerOnBookieError  an explicit negative: the bookie is certain
│   └── UnauthorizedError          the ledger's password does not fit
├── SharedSecretConfigError        a file of shared secrets that cannot be used
├── DigestMismatchError            stored bytes do not match their digest or their identity
├── InvalidLedgerMetadataError     metadata that breaks a rule: refused, never repaired
│   ├── FutureMetadataVersionError a ledger written by a newer release: upgrade before using it
│   └── FutureLogFormatError       a log written by a newer release: upgrade before using it
├── NoSuchLedgerError              metadata has no such ledger
├── OwnerUnclearError              nobody can tell whether the ledger is still in use
├── ClocksApartError               clocks of this machine and the store are too far apart
├── LedgerIdsExhaustedError        the id generator has reached its end
├── LedgerLayoutError              another ledger manager keeps the ledgers of this root
├── NotEnoughBookiesError          fewer writable bookies than the ensemble needs
├── LedgerFencedError              another client recovers or owns the ledger; outcome unknown
├── LedgerClosedError              the handle is closed, or another client closed the ledger
├── LedgerWriteError               an add could not reach its ack quorum; outcome unknown
├── BookieRegisteredError          a bookie that is to be given up is running
├── NoSuchBookieError              the cluster never knew a bookie of this id
├── ReplicationLockLostError       the lock of a ledger's replicas went with the session
├── RecoveryUndecidedError         too few bookies answered to tell where the ledger ends
├── BeyondLastConfirmedError       a read above what is confirmed
├── ObjectError                    a ledger in an object store
│   ├── ObjectDamagedError         not what was written, or of another ledger: never used
│   ├── ObjectIncompleteError      a ledger to be copied could not be read to its end
│   ├── LedgersLeftError           some ledgers of a log were not copied, or not forgotten
│   ├── FutureObjectVersionError   a newer release wrote it
│   ├── ObjectMissingError         the store is certain that there is no such object
│   ├── ObjectKeyConfigError       a file of keys for objects that cannot be used
│   ├── ObjectKeyError             an encrypted object whose key is not here, or is another one
│   ├── ObjectStoreConfigError     settings or an installation with which no store can be opened
│   ├── ObjectStoreUnavailableError  no answer, or one that proves nothing (outcome unknown)
│   └── ObjectStoreRefusedError    wrong credentials, no permission, or no such bucket
├── LogError                       the managed log
│   ├── LogFencedError             another owner took the log over
│   ├── LogClosedError             this handle is closed
│   ├── LogTerminatedError         the log takes no more appends, ever
│   ├── LogExistsError             a log to be created is there already
│   ├── NoSuchLogError             a log to be opened is not there
│   ├── LogTrimmedError            what was to be read next has been removed from the log
│   ├── LogDataLossError           a listed ledger has no metadata any more
│   ├── UnknownMessageFormatError  an entry that holds no messages of a format we know
│   ├── MessageTooLargeError       messages beyond the bounds of an entry
│   └── LogUnavailableError        could not open or create a ledger just now
└── MetadataError                  the metadata store
    ├── NoNodeError, NodeExistsError, NotEmptyError, BadVersionError
    ├── InvalidPathError, ValueTooLargeError
    ├── MetadataAccessError        the node is another user's: nothing was changed
    ├── ContendedError             others changed the node at each try (nothing was changed)
    ├── UnknownOutcomeError        a write may or may not have happened: re-read and compare
    ├── MetadataUnavailableError   not connected, or no answer in time (nothing was changed)
    ├── MetadataDamagedError       stored bytes are not what was written: never acted on
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
    """A frame of the bookie protocol in a version that this release does not speak; with what its
    header says, which is the same in all versions."""

    def __init__(
        self, message: str, *, op: int, request_id: int, ledger_id: int, entry_id: int
    ) -> None:
        super().__init__(message)
        self.op = op
        self.request_id = request_id
        self.ledger_id = ledger_id
        self.entry_id = entry_id


class BookieError(LedgerError):
    """One bookie could not do what was asked."""


class BookieUnavailableError(BookieError):
    """No answer, or an answer that proves nothing: never evidence that data is absent."""

    retryable = True


class BookieSecretError(BookieUnavailableError):
    """The bookie and this client do not know the same shared secret, or only one of them has any:
    `shared_secret_file` must be the same on both sides."""


class SecretRefusedError(ConnectionError):
    """Of the network: a connection was refused in the handshake of the shared secret."""


class WrongBookieError(ConnectionError):
    """Of a connection: another bookie answers at the address than the one that is meant."""


class SharedSecretConfigError(LedgerError):
    """A file of shared secrets cannot be used: it says which, and why."""


class NoSuchEntryError(BookieError):
    """The bookie is certain that it does not hold the entry."""


class NoSuchLedgerOnBookieError(BookieError):
    """The bookie is certain that it holds nothing of the ledger."""


class UnauthorizedError(BookieError):
    """The master key does not match the one the ledger was created with."""


class DigestMismatchError(LedgerError):
    """An entry packet whose digest, ledger id or entry id is not what it should be."""


class InvalidLedgerMetadataError(LedgerError):
    """Ledger metadata that breaks a rule. It is refused, never repaired."""


class FutureMetadataVersionError(InvalidLedgerMetadataError):
    """Ledger metadata of a newer release. Upgrade this one before it uses the ledger."""


class FutureLogFormatError(InvalidLedgerMetadataError):
    """A log's node was written by a newer release. Upgrade this one before it uses the log."""


class NoSuchLedgerError(LedgerError):
    """The metadata store has no such ledger."""


class OwnerUnclearError(LedgerError):
    """Nobody can tell whether a ledger is still in use: the owner that its custom metadata names
    does not answer, or is unknown."""


class ClocksApartError(LedgerError):
    """The clocks of this machine and of the metadata store are so far apart that one is wrong."""


class LedgerIdsExhaustedError(LedgerError):
    """The id generator has counted beyond the largest ledger id."""


class LedgerLayoutError(LedgerError):
    """The root's ledgers are kept by another ledger manager, or lie where ours keeps none."""


class NotEnoughBookiesError(LedgerError):
    """Fewer writable bookies are registered than the ensemble needs."""

    retryable = True


class LedgerFencedError(LedgerError):
    """Another client fenced the ledger. Whether pending adds survive is decided by it."""


class LedgerClosedError(LedgerError):
    """The ledger takes no more adds."""


class LedgerWriteError(LedgerError):
    """An add failed on too many bookies. It may still turn up after recovery."""


class EntryTooLargeError(LedgerWriteError):
    """A payload is above `entry_bytes_max`; nothing was written, and never will be."""


class RecoveryUndecidedError(LedgerError):
    """Too few bookies answered to decide where the ledger ends. Try again later."""

    retryable = True


class BookieRegisteredError(LedgerError):
    """The bookie is registered: it cannot be recovered or decommissioned while it runs."""


class NoSuchBookieError(LedgerError):
    """There is no cookie of this id: no such bookie, or it was decommissioned already."""


class ReplicationLockLostError(LedgerError):
    """Somebody else may copy or drop the ledger's replicas by now."""

    retryable = True


class BeyondLastConfirmedError(LedgerError):
    """The entry is above the last add confirmed that this reader knows."""


class ObjectError(LedgerError):
    """A ledger in an object store."""


class ObjectDamagedError(ObjectError):
    """The store returned bytes that fail their checksum, or that belong to another object. A second
    request may return the right ones; if not, read the entries from another copy."""


class ObjectIncompleteError(ObjectError):
    """A ledger that is to be copied could not be read to its end."""

    retryable = True


class LedgersLeftError(ObjectError):
    """Some ledgers of a log could not be copied to an object store, or not be forgotten by bookies.
    Each is tried again after a pause of its own; those that are not named were done, unless
    `is_ended`: too many failed one after the other, and what came behind them was not tried."""

    retryable = True

    def __init__(self, text: str, *, is_ended: bool) -> None:
        super().__init__(text)
        self.is_ended = is_ended


class FutureObjectVersionError(ObjectError):
    """An object that a newer release wrote: read it with that one."""


class ObjectMissingError(ObjectError):
    """The store is certain that there is no such object."""


class ObjectKeyConfigError(ObjectError):
    """A file of keys for objects cannot be used: the error says which file, and what is wrong, and
    shows no key. An operator has to mend that."""


class ObjectKeyError(ObjectError):
    """An object is encrypted with a key that this process does not have, or has otherwise. Other
    objects can be read. An operator has to add the key, and start the process again."""

    def __init__(self, text: str, *, key_id: str = "") -> None:
        super().__init__(text)
        self.key_id = key_id


class ObjectStoreConfigError(ObjectError):
    """An object store cannot be opened: its URL or another setting is wrong, or a package is not
    installed. An operator has to mend that; no request was made."""


class ObjectStoreUnavailableError(ObjectError):
    """The store gave no answer, or one that proves nothing: never evidence that data is absent. A
    write may have happened."""

    retryable = True


class ObjectStoreRefusedError(ObjectError):
    """The store does not let us: wrong credentials, no permission, no such bucket. An operator has
    to mend that."""


class LogError(LedgerError):
    """Root of the managed log's errors."""


class LogFencedError(LogError):
    """Another owner has taken the log over; this handle is dead."""


class LogClosedError(LogError):
    """The log handle is closed."""


class LogTerminatedError(LogError):
    """The log was terminated: it is complete, and can only be read."""


class LogExistsError(LogError):
    """There is a log at the path already: open it, or choose another path."""


class NoSuchLogError(LogError):
    """There is no log at the path: create it first, or check the path."""


class LogTrimmedError(LogError):
    """The reader's next entry was removed by a shrink. `first` is where the log begins now."""

    def __init__(self, message: str, first: tuple[int, int]) -> None:
        super().__init__(message)
        self.first = first


class UnknownMessageFormatError(LogError):
    """An entry whose bytes are no messages, or messages of a format that is not known here."""


class MessageTooLargeError(LogError):
    """A message, or the messages of one entry, exceed a bound; nothing was written."""


class LogDataLossError(LogError):
    """A ledger of the log is gone from the metadata store."""


class LogUnavailableError(LogError):
    """A ledger could not be created or recovered just now."""

    retryable = True


class MetadataError(LedgerError):
    """Root of the metadata stores' errors."""


class NoNodeError(MetadataError):
    """There is no node at the path."""


class NodeExistsError(MetadataError):
    """There is a node at the path already."""


class NotEmptyError(MetadataError):
    """The node has children."""


class BadVersionError(MetadataError):
    """The node changed since the version that the write was based on."""


class ContendedError(MetadataError):
    """Other writers changed the node at each of the bounded tries; nothing was changed."""

    retryable = True


class InvalidPathError(MetadataError):
    """A path or URL that cannot be used."""


class MetadataAccessError(MetadataError):
    """The store does not let this user read or change the node: nothing was changed."""


class ValueTooLargeError(MetadataError):
    """A value beyond what a node may hold."""


class UnknownOutcomeError(MetadataError):
    """The connection broke while a write was under way: re-read and compare before going on."""

    retryable = True


class MetadataUnavailableError(MetadataError):
    """The store did not answer in time; nothing was changed."""

    retryable = True


class MetadataDamagedError(MetadataError):
    """The store's own files are not as they were written. Nothing is done on their word."""


class SessionExpiredError(MetadataError):
    """The session is gone, and its ephemeral nodes with it."""
