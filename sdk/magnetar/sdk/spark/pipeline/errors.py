"""Errors of the jobs: `MagnetarSparkError` (`magnetar.sdk.spark.errors`), and

└── PipelineError               one line that says what to do
    ├── ArchiveError            a directory that is no archive, or one that is damaged
    └── ArchiveBusyError        another job has written to the archive at the same time
"""

from magnetar.sdk.spark.errors import MagnetarSparkError

__all__ = ["ArchiveBusyError", "ArchiveError", "PipelineError"]


class PipelineError(MagnetarSparkError):
    """A job cannot go on."""


class ArchiveError(PipelineError):
    """What lies there is not what the archive's log says."""


class ArchiveBusyError(PipelineError):
    """Somebody else has committed: two jobs work on one archive."""

    retryable = True
