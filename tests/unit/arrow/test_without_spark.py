"""Reading by Arrow needs no Spark: neither installed nor loaded."""

import subprocess
import sys

PROGRAM = """
import sys

sys.modules["pyspark"] = sys.modules["py4j"] = None  # as if they were not installed
import pkgutil

import magnetar.arrow
import pyarrow as pa
from magnetar.arrow.stored.column_types import value_fields
from magnetar.arrow.slice_rows import rows_of
from magnetar.arrow.stored.slices import Slice, ValueSchema
from magnetar.arrow.stored.values import value_columns

for each in pkgutil.walk_packages(magnetar.arrow.__path__, "magnetar.arrow."):
    if each.name != "magnetar.arrow.worker":  # a program
        __import__(each.name)
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
