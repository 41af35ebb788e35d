"""The matrix of the source: what was published comes, whatever two ways meet.

`make spark-matrix` runs all 288 cases; here are those in which every two ways meet.
"""

import os
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.integration.spark.matrix import ALL, PAIRS, Case, CaseRun
from tests.standalone import Standalone

CASES = ALL if os.environ.get("MAGNETAR_SPARK_MATRIX") == "all" else PAIRS


@pytest.mark.parametrize("case", CASES, ids=str)
def test_what_was_published_comes(
    spark: SparkSession, server: Standalone, tmp_path: Path, case: Case
) -> None:
    CaseRun(case, server, spark, f"matrix-{ALL.index(case)}", tmp_path).check()
