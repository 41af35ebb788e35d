"""Errors of the Spark source and sink, and of the jobs. Errors of reading are `magnetar.arrow`'s.

MagnetarSparkError              the root: `magnetar.arrow.stored.errors.MagnetarArrowError`
├── …                           errors of reading, see there
├── RetryMismatchError          a retry of the sink with other rows than were stored
└── PipelineError               a job cannot go on; one line that says what to do
    ├── ArchiveError            a directory that is not an archive, or one that is damaged
    └── ArchiveBusyError        another job has written to the archive at the same time
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager

from magnetar.arrow.stored.errors import (
    CorruptDataError,
    DataLossError,
    EntryLossError,
    HeadlessMessageError,
    MagnetarArrowError,
    OffsetError,
    OptionError,
    SchemaMismatchError,
    TopicNotFoundError,
    UnreachableError,
)

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

MagnetarSparkError = MagnetarArrowError
"""Name of the root error in queries."""


class RetryMismatchError(MagnetarSparkError):
    """A retried task has other rows, or another order, than a previous attempt has stored."""


class PipelineError(MagnetarSparkError):
    """A job cannot go on."""


class ArchiveError(PipelineError):
    """Files of an archive do not match its log."""


class ArchiveBusyError(PipelineError):
    """Another job has committed: two jobs work on one archive."""

    retryable = True


@contextmanager
def one_line_errors() -> Iterator[None]:
    """Make Spark report errors of this package in one line, without a Python stack.

    Spark formats the error after it has left this context, and then ends the process. Hiding the
    stack for the process thus affects this error only.
    """
    try:
        yield
    except MagnetarSparkError:
        os.environ[_HIDE_TRACEBACK] = "1"
        raise
