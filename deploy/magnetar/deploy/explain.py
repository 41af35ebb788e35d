"""Turns a component's error at start-up into one line that says what to do, and an exit status.

Only errors that a person can act upon are translated. All others keep their traceback.
"""

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from magnetar.bookie.errors import (
    CookieError,
    DirectoryLockedError,
    DiskError,
    JournalCorruptError,
    JournalError,
    JournalFileMissingError,
    OpenToAllError,
    PortTakenError,
    RegistrationTakenError,
    StartError,
    StorageCorruptError,
    StorageError,
    StorageIOError,
)
from magnetar.broker.base.errors import ListenError, NotRegisteredError, RequestError
from magnetar.broker.security.keys import SecurityConfigError
from magnetar.deploy.errors import (
    AddressUnavailableError,
    DamageFoundError,
    DataDirectoryError,
    DataDirectoryLockedError,
    DeployError,
    ForeignCookieError,
    MetadataUnreachableError,
    SettingsError,
    UnreadableMetadataError,
)
from magnetar.ledger.errors import (
    BookieRegisteredError,
    ClocksApartError,
    InvalidLedgerMetadataError,
    InvalidPathError,
    LedgerLayoutError,
    MetadataDamagedError,
    MetadataError,
    NoNodeError,
    NoSuchBookieError,
    NoSuchLedgerError,
    ObjectDamagedError,
    ObjectError,
    ObjectKeyConfigError,
    ObjectKeyError,
    ObjectMissingError,
    ObjectStoreConfigError,
    ObjectStoreRefusedError,
    SharedSecretConfigError,
)
from magnetar.ledger.tls import TlsConfigError

_JOURNAL_ADVICE = (
    "'magnetar bookie-tool verify' lists the damage. Restore the files. If you cannot, move the "
    "journal directory away and start with integrity_stamp_missing_cookies=true: lost entries are "
    "copied from the other bookies"
)
_STORAGE_ADVICE = (
    "'magnetar bookie-tool verify' lists the damage; 'magnetar bookie-tool rebuild-index' rebuilds "
    "a damaged index from the entry logs"
)
_ADDRESS_ERRNOS = (errno.EADDRINUSE, errno.EADDRNOTAVAIL)


@contextmanager
def explained(*, data: Path | None = None, metadata_url: str | None = None) -> Iterator[None]:
    """Raise the matching `DeployError` for an error inside, if there is one."""
    try:
        yield
    except DeployError:
        raise
    except Exception as error:
        explanation = explain(error, data=data, metadata_url=metadata_url)
        if explanation is None:
            raise
        raise explanation from error


def explain(
    error: Exception, *, data: Path | None = None, metadata_url: str | None = None
) -> DeployError | None:
    """Return the error in words for a person; None if only a programmer can act upon it."""
    while isinstance(error, ExceptionGroup):
        # Parts that start together fail as a group; a person should repair the first failure first.
        error = error.exceptions[0]
    text = " ".join(str(error).split())
    match error:
        case DirectoryLockedError():
            return DataDirectoryLockedError(text)
        case PortTakenError() | ListenError():
            return AddressUnavailableError(text)
        case OpenToAllError():
            return SettingsError(text)
        case CookieError() | RegistrationTakenError() | NotRegisteredError():
            return ForeignCookieError(text)
        case JournalCorruptError() | JournalFileMissingError():
            return DataDirectoryError(f"{text}; {_JOURNAL_ADVICE}")
        case StorageCorruptError():
            return DataDirectoryError(f"{text}; {_STORAGE_ADVICE}")
        case StorageIOError() if "No such file" in text:
            # An index file that other index files name is missing.
            return DataDirectoryError(f"{text}; {_STORAGE_ADVICE}")
        case StartError() | DiskError() | JournalError() | StorageError():
            return DataDirectoryError(text)
        case SecurityConfigError() | TlsConfigError() | SharedSecretConfigError():
            return SettingsError(text)
        case BookieRegisteredError() | NoSuchBookieError():
            return SettingsError(text)
        case InvalidPathError() | LedgerLayoutError() | NoSuchLedgerError() | ClocksApartError():
            return SettingsError(text)
        case InvalidLedgerMetadataError() | MetadataDamagedError():
            return UnreadableMetadataError(text)
        case NoNodeError():
            return SettingsError(f"{text}: {metadata_url} holds no cluster; check the URL")
        case ObjectDamagedError() | ObjectMissingError():
            return DamageFoundError(text)
        case ObjectStoreConfigError() | ObjectStoreRefusedError():
            return SettingsError(text)
        case ObjectKeyConfigError() | ObjectKeyError():
            return SettingsError(text)
        case ObjectError():
            return DeployError(f"the object store does not answer as it should: {text}")
        case RequestError():
            return SettingsError(text)
        case MetadataError():
            is_file = metadata_url is not None and metadata_url.startswith("embedded:")
            # SQLite also says "disk I/O error" when the disk is only full.
            question = "is its disk full or read-only?" if is_file else "is it running?"
            return MetadataUnreachableError(
                f"cannot use the metadata store {metadata_url}: {text}; {question}"
            )
        case OSError() if error.errno in _ADDRESS_ERRNOS:
            return AddressUnavailableError(text)
        case OSError() if data is not None and error.errno is not None:
            return DataDirectoryError(
                f"cannot use the data directory {data}: {error.strerror}"
                + (f" ({error.filename})" if error.filename else "")
            )
    return None
