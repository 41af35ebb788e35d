"""Errors of the Arrow reader. Those that it shares with the Spark source are `stored.errors`.

SdkError                        see `magnetar.sdk.errors`
└── MagnetarArrowError          one line that says what to do; `retryable` as everywhere
    ├── OptionError             an argument whose value is not allowed
    ├── TopicNotFoundError      no topic of that name
    ├── OffsetError             a place to begin or end at that the topic does not have
    ├── AccessDeniedError       the credentials are missing, wrong, or may not read the topic
    ├── SchemaMismatchError     values, or columns, that do not fit the topic's schema
    ├── DataLossError           messages that were to be read have been deleted
    ├── CorruptDataError        a message that cannot be read: damaged, or encrypted
    ├── MemoryLimitError        a message that does not fit into `memory_bytes`
    ├── UnreachableError        a broker, bookie or metadata store does not answer
    ├── WorkerLostError         a process that was reading has ended
    ├── EvolutionError          a topic's schema that a table's columns cannot become
    └── TableError              a table that is no archive, or not of this job
        ├── CatalogError        a catalog, or the storage of a table, fails
        └── TableBusyError      another archiver writes to the table at the same time
"""

from collections.abc import Iterator
from contextlib import contextmanager
from http import HTTPStatus

from magnetar.arrow.stored.errors import (
    CorruptDataError,
    DataLossError,
    EntryLossError,
    HeadlessMessageError,
    MagnetarArrowError,
    OffsetError,
    OptionError,
    RefusedError,
    SchemaMismatchError,
    TopicNotFoundError,
    UnreachableError,
)
from magnetar.sdk.wire.errors import AuthenticationError, AuthorizationError

__all__ = [
    "AccessDeniedError",
    "CatalogError",
    "CorruptDataError",
    "DataLossError",
    "EvolutionError",
    "MagnetarArrowError",
    "MemoryLimitError",
    "OffsetError",
    "OptionError",
    "SchemaMismatchError",
    "TableBusyError",
    "TableError",
    "TopicNotFoundError",
    "UnreachableError",
    "WorkerLostError",
    "error_from",
    "refusals_typed",
]


class AccessDeniedError(MagnetarArrowError):
    """A broker refuses the credentials, or their role may not read the topic."""


class MemoryLimitError(MagnetarArrowError):
    """A message, or a batch of its producer, is larger than the reader may hold."""


class WorkerLostError(MagnetarArrowError):
    """A process that was reading has ended before its share was read: it was killed, or ran out of
    memory. Reading again may help."""

    retryable = True


class EvolutionError(MagnetarArrowError):
    """A column of a table would have to change in a way that tables do not have."""


class TableError(MagnetarArrowError):
    """A table that an archive cannot be written to."""


class CatalogError(TableError):
    """A catalog of tables, or the storage of one, does not do what it was asked for."""

    retryable = True


class TableBusyError(TableError):
    """Another archiver has written to the table at the same time."""

    retryable = True


_DENIED = (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN)
_HINT = "give credentials of a role that may consume from the topic, as authentication='token:…'"


@contextmanager
def refusals_typed() -> Iterator[None]:
    """Raise AccessDeniedError where a broker says that the caller may not."""
    try:
        yield
    except RefusedError as error:
        if error.status not in _DENIED:
            raise
        raise AccessDeniedError(f"{error}: {_HINT}") from error
    except UnreachableError as error:
        # Brokers that entries are read through give their reason to the cause.
        reason = getattr(error.__cause__, "error", None)
        if not isinstance(reason, AuthenticationError | AuthorizationError):
            raise
        raise AccessDeniedError(f"{error}: {_HINT}") from error


_BY_NAME: dict[str, type[MagnetarArrowError]] = {
    each.__name__: each
    for each in (
        AccessDeniedError,
        CorruptDataError,
        DataLossError,
        EntryLossError,
        HeadlessMessageError,
        MemoryLimitError,
        OffsetError,
        SchemaMismatchError,
        TopicNotFoundError,
        UnreachableError,
        WorkerLostError,
    )
}


def error_from(name: str, text: str) -> MagnetarArrowError:
    """The error of a process that read for this one, by the name of its class."""
    return _BY_NAME.get(name, MagnetarArrowError)(text)
