"""Errors of reading topics as they are stored.

SdkError                        see `magnetar.sdk.errors`
└── MagnetarArrowError          one line that says what to do; `retryable` as everywhere
    ├── OptionError             an option with an unknown name, or a value that is not allowed
    ├── TopicNotFoundError      no topic of that name, or none that fits the pattern
    ├── OffsetError             offsets that are no offsets of these topics
    ├── DataLossError           what is asked for was deleted, or trimmed
    │   └── EntryLossError      one entry of a ledger that is there
    ├── UnreachableError        a server that planning needs does not answer
    ├── RefusedError            a broker has answered with an error of HTTP
    ├── CorruptDataError        what is stored cannot be read: carries topic and message id
    │   └── HeadlessMessageError  a message in chunks has lost its beginning
    └── SchemaMismatchError     columns that do not fit the topic's schema

`magnetar.arrow.stored.errors` and `magnetar.sdk.spark.errors` add to the tree.
"""

from magnetar.sdk.errors import SdkError


class MagnetarArrowError(SdkError):
    """Something that the caller of a read, or the user of a query, can put right."""


class OptionError(MagnetarArrowError):
    """An option that is not known, missing, or of a value that is not allowed."""

    def __init__(self, name: str, problem: str) -> None:
        super().__init__(f"option {name}: {problem}")
        self.name = name


class TopicNotFoundError(MagnetarArrowError):
    """A topic that does not exist."""


class OffsetError(MagnetarArrowError):
    """Offsets that cannot be read, or are not those of the topics."""


class DataLossError(MagnetarArrowError):
    """Messages that the query still has to read are not there any more."""


class EntryLossError(DataLossError):
    """The first entry that was not given is lost; those behind it may be there."""


class UnreachableError(MagnetarArrowError):
    """A broker, bookie or metadata store does not answer."""

    retryable = True


class RefusedError(MagnetarArrowError):
    """The broker answered with an error; `status` is that of HTTP."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class CorruptDataError(MagnetarArrowError):
    """An entry that no replica gives back as it was written, or that is no message."""


class HeadlessMessageError(CorruptDataError):
    """A message in chunks whose beginning is not there: lost data, not data that cannot be read."""


class SchemaMismatchError(MagnetarArrowError):
    """Columns that do not fit the schema of the topic."""
