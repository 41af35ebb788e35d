"""Errors of reading topics as they are stored.

SdkError                        see `magnetar.sdk.errors`
└── MagnetarArrowError          one line that says what to do; `retryable` as everywhere
    ├── OptionError             an option with an unknown name, or a value that is not allowed
    ├── TopicNotFoundError      no topic has that name, or matches the pattern
    ├── OffsetError             offsets that are not valid for these topics
    ├── DataLossError           requested messages were deleted, or trimmed
    │   └── EntryLossError      one entry of a ledger that still exists
    ├── UnreachableError        a server that planning needs does not answer
    │   └── SilentBrokerError   a broker says that an entry exists, and does not send it
    ├── RefusedError            a broker has answered with an error of HTTP
    ├── CorruptDataError        stored data that cannot be read: carries topic and message id
    │   └── HeadlessMessageError  a chunked message has lost its beginning
    └── SchemaMismatchError     columns that do not fit the topic's schema

`magnetar.arrow.errors` and `magnetar.sdk.spark.errors` add to the tree.
"""

from magnetar.sdk.errors import SdkError


class MagnetarArrowError(SdkError):
    """An error that the caller of a read, or the user of a query, can correct."""


class OptionError(MagnetarArrowError):
    """An option that is unknown, missing, or has a value that is not allowed."""

    def __init__(self, name: str, problem: str) -> None:
        super().__init__(f"option {name}: {problem}")
        self.name = name


class TopicNotFoundError(MagnetarArrowError):
    """A topic that does not exist."""


class OffsetError(MagnetarArrowError):
    """Offsets that cannot be read, or are not those of the topics."""


class DataLossError(MagnetarArrowError):
    """Messages that the query still has to read do not exist any more."""


class EntryLossError(DataLossError):
    """The first entry that was not delivered is lost; later ones may exist."""

    def __init__(
        self, message: str, *, may_have_moved: bool = False, is_denied: bool = False
    ) -> None:
        """
        Args:
            may_have_moved: one of the entry's bookies does not have the ledger at all. It may have
                left them for an object store, or for other bookies.
            is_denied: one of the entry's bookies has the ledger, but not the entry.
        """
        super().__init__(message)
        self.may_have_moved = may_have_moved
        self.is_denied = is_denied


class UnreachableError(MagnetarArrowError):
    """A broker, bookie or metadata store does not answer."""

    retryable = True


class SilentBrokerError(UnreachableError):
    """A broker has long said that there are more messages, and has sent nothing.

    It cannot read the next entry: its bookies do not answer, or the entry is lost.
    """


class RefusedError(MagnetarArrowError):
    """The broker answered with an error; `status` is that of HTTP."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class CorruptDataError(MagnetarArrowError):
    """An entry that no replica returns as it was written, or that is not a message."""


class HeadlessMessageError(CorruptDataError):
    """A chunked message whose beginning is gone: the data is lost, not unreadable."""


class SchemaMismatchError(MagnetarArrowError):
    """Columns that do not fit the schema of the topic."""
