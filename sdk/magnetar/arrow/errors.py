"""Errors of the Arrow reader. The Spark source shares those in `stored.errors`.

SdkError                        see `magnetar.sdk.errors`
└── MagnetarArrowError          one line that says what to do; `retryable` as everywhere
    ├── OptionError             an argument whose value is not allowed
    ├── TopicNotFoundError      no topic has that name
    ├── OffsetError             a start or end position that the topic does not have
    ├── AccessDeniedError       the credentials are missing, wrong, or may not read the topic
    ├── SchemaMismatchError     values or columns that do not fit the topic's schema
    ├── DataLossError           messages in the range of the read have been deleted
    ├── CorruptDataError        a message that cannot be read: damaged, or encrypted
    ├── MemoryLimitError        a message that does not fit into `memory_bytes`
    ├── UnreachableError        a broker, bookie or metadata store does not answer
    ├── WorkerLostError         a worker process has ended during a read
    ├── EvolutionError          a schema change that a table's columns cannot follow
    └── TableError              a table that is not an archive, or belongs to another job
        ├── CatalogError        a catalog, or the storage of a table, fails
        └── TableBusyError      another archiver writes to the table at the same time
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http import HTTPStatus

from magnetar.arrow.stored.errors import (
    CorruptDataError,
    DataLossError,
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
    """A worker process ended before it had read its share: it was killed, or ran out of memory. A
    retry may help."""

    retryable = True


class EvolutionError(MagnetarArrowError):
    """A column of a table would have to change in a way that tables do not support."""


class TableError(MagnetarArrowError):
    """An archive cannot be written to this table."""


class CatalogError(TableError):
    """A catalog, or the storage of a table, failed an operation."""

    retryable = True


class TableBusyError(TableError):
    """Another archiver has written to the table at the same time."""

    retryable = True


_DENIED = (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN)
_HINT = "give credentials of a role that may consume from the topic, as authentication='token:…'"


@contextmanager
def refusals_typed() -> Iterator[None]:
    """Raise AccessDeniedError where a broker refuses the caller's rights."""
    try:
        yield
    except RefusedError as error:
        if error.status not in _DENIED:
            raise
        raise AccessDeniedError(f"{error}: {_HINT}") from error
    except UnreachableError as error:
        # When entries are read through a broker, the broker's reason is in the cause.
        reason = getattr(error.__cause__, "error", None)
        if not isinstance(reason, AuthenticationError | AuthorizationError):
            raise
        raise AccessDeniedError(f"{error}: {_HINT}") from error


def _with_subclasses(kind: type[MagnetarArrowError]) -> Iterator[type[MagnetarArrowError]]:
    yield kind
    for each in kind.__subclasses__():
        yield from _with_subclasses(each)


_BY_NAME = {each.__name__: each for each in _with_subclasses(MagnetarArrowError)}


def error_from(
    name: str, text: str, attributes: Mapping[str, object] | None = None
) -> MagnetarArrowError:
    """Rebuild the error of a worker process from its class name, its text and its attributes."""
    kind = _BY_NAME.get(name, MagnetarArrowError)
    # Not by the constructor: those of some classes make the text from their arguments.
    error = kind.__new__(kind, text)
    vars(error).update(attributes or {})
    return error
