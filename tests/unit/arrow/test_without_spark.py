"""Reading by Arrow needs no Spark: neither installed nor loaded."""

import subprocess
import sys

PROGRAM = """
import sys

sys.modules["pyspark"] = sys.modules["py4j"] = None  # as if they were not installed
import pkgutil

import magnetar.arrow
import pyarrow as pa
from magnetar.arrow.column_types import PUBLISH_TIME, value_fields
from magnetar.arrow.shared import rows_of
from magnetar.arrow.values import value_columns
from magnetar.sdk.spark import ledger_directory, object_reads, stored_topics
from magnetar.sdk.spark.slices import Slice, ValueSchema

for each in pkgutil.iter_modules(magnetar.arrow.__path__):
    __import__(f"magnetar.arrow.{each.name}")
record = '{"type": "record", "name": "R", "fields": [{"name": "x", "type": "long"}]}'
for kind in ("AVRO", "JSON", "STRING", "INT32", "BYTES"):
    schema = ValueSchema(kind, record)
    fields = pa.schema(value_fields(schema))
    rows = rows_of(fields, Slice("t", -1, ()), value_columns(fields.names, schema))
    assert rows.take().num_rows == 0
"""


def test_it_runs_where_spark_is_not_installed() -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
