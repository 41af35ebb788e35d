"""Errors of the Spark source and sink, and of the jobs.

SdkError                        see `magnetar.sdk.errors`
└── MagnetarSparkError          one line that says what to do; `retryable` as everywhere
    ├── OptionError             an option with an unknown name, or a value that is not allowed
    ├── TopicNotFoundError      no topic of that name, or none that fits the pattern
    ├── OffsetError             offsets that are no offsets of these topics
    ├── DataLossError           what is asked for was deleted, or trimmed
    │   └── EntryLossError      one entry of a ledger that is there
    ├── UnreachableError        a server that planning needs does not answer
    ├── CorruptDataError        what is stored cannot be read: carries topic and message id
    │   └── HeadlessMessageError  a message in chunks has lost its beginning
    ├── SchemaMismatchError     columns that do not fit the topic's schema
    ├── RetryMismatchError      a retry of the sink with other rows than were stored
    └── PipelineError           a job cannot go on; one line that says what to do
        ├── ArchiveError        a directory that is no archive, or one that is damaged
        └── ArchiveBusyError    another job has written to the archive at the same time
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager

from magnetar.sdk.errors import SdkError

__all__ = [
    "ArchiveBusyError",
    "ArchiveError",
    "CorruptDataError",
    "DataLossError",
    "EntryLossError",
    "HeadlessMessageError",
    "MagnetarSparkError",
    "OffsetError",
    "OptionError",
    "PipelineError",
    "RetryMismatchError",
    "SchemaMismatchError",
    "TopicNotFoundError",
    "UnreachableError",
    "one_line_errors",
]

_HIDE_TRACEBACK = "SPARK_HIDE_TRACEBACK"
"""Spark's own switch for its Python workers: report the error without the stack."""


class MagnetarSparkError(SdkError):
    """Something that the user of the source or the sink can put right."""


class OptionError(MagnetarSparkError):
    """An option that is not known, missing, or of a value that is not allowed."""

    def __init__(self, name: str, problem: str) -> None:
        super().__init__(f"option {name}: {problem}")
        self.name = name


class TopicNotFoundError(MagnetarSparkError):
    """A topic that does not exist."""


class OffsetError(MagnetarSparkError):
    """Offsets that cannot be read, or are not those of the topics."""


class DataLossError(MagnetarSparkError):
    """Messages that the query still has to read are not there any more."""


class EntryLossError(DataLossError):
    """The first entry that was not given is lost; those behind it may be there."""


class UnreachableError(MagnetarSparkError):
    """A broker, bookie or metadata store does not answer."""

    retryable = True


class CorruptDataError(MagnetarSparkError):
    """An entry that no replica gives back as it was written, or that is no message."""


class HeadlessMessageError(CorruptDataError):
    """A message in chunks whose beginning is not there: lost data, not data that cannot be read."""


class SchemaMismatchError(MagnetarSparkError):
    """Columns that do not fit the schema of the topic."""


class RetryMismatchError(MagnetarSparkError):
    """A task that is tried again has other rows, or another order, than an attempt has stored."""


class PipelineError(MagnetarSparkError):
    """A job cannot go on."""


class ArchiveError(PipelineError):
    """What lies there is not what the archive's log says."""


class ArchiveBusyError(PipelineError):
    """Somebody else has committed: two jobs work on one archive."""

    retryable = True


@contextmanager
def one_line_errors() -> Iterator[None]:
    """Have Spark report our errors by their one line, not by the stack of a Python process.

    Spark formats the error after it has left our code, and ends the process then: switching the
    stack off for that process hides the stack of this error and of no other.
    """
    try:
        yield
    except MagnetarSparkError:
        os.environ[_HIDE_TRACEBACK] = "1"
        raise
