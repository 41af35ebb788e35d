"""What a job shows of an error that Spark has wrapped."""

import traceback

import pytest

from magnetar.arrow.stored.errors import (
    DataLossError,
    MagnetarArrowError,
    OptionError,
    TopicNotFoundError,
    UnreachableError,
)
from magnetar.sdk.errors import NotSupportedError, SdkError
from magnetar.sdk.spark.errors import ArchiveError
from magnetar.sdk.spark.pipeline.job import one_line

KINDS = [
    DataLossError,
    MagnetarArrowError,
    TopicNotFoundError,
    UnreachableError,
    ArchiveError,
    NotSupportedError,
]
ERRORS: list[SdkError] = [
    OptionError("topic", "it is required"),
    *(kind("t: magnetar.x has no entry 1: 2") for kind in KINDS),
]


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_an_error_that_spark_wraps_is_shown_as_its_own_line(error: SdkError) -> None:
    """Spark formats an error of a worker as Python does."""
    own = "".join(traceback.format_exception_only(error))
    wrapped = (
        "[STREAM_FAILED] Query [id = 1, runId = 2] terminated with exception: Job aborted: "
        "org.apache.spark.api.python.PythonException:\n"
        '  File "/lib/magnetar/sdk/spark/tasks.py", line 24, in read\n'
        f"{own}\n\tat org.apache.spark.api.python.BasePythonRunner: 1\nSQLSTATE: XXKST"
    )
    assert one_line(Exception(wrapped)) == str(error)


def test_an_error_of_spark_itself_is_shown_by_its_first_line() -> None:
    assert one_line(Exception("[PATH_NOT_FOUND] no such path: x\n\tat org.apache")) == (
        "[PATH_NOT_FOUND] no such path: x"
    )
    assert one_line(ValueError()) == "ValueError"


def test_an_error_of_the_job_is_shown_as_it_is() -> None:
    error = ArchiveError("magnetar.jobs.Archive: holds no rows")
    assert one_line(error) == str(error)
