"""Errors of the Spark source and sink, and of the jobs. Those of reading are `magnetar.arrow`'s.

MagnetarSparkError              the root: `magnetar.arrow.stored.errors.MagnetarArrowError`
├── …                           what reading raises, see there
├── RetryMismatchError          a retry of the sink with other rows than were stored
└── PipelineError               a job cannot go on; one line that says what to do
    ├── ArchiveError            a directory that is no archive, or one that is damaged
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
"""The name that the root has in queries."""


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
