"""Topics as Arrow record batches: for pandas, polars, DuckDB and everything else that reads Arrow.

from magnetar.arrow import read

read("flights", service_url="pulsar://…", admin_url="http://…").read_pandas()

Guide: docs/arrow.md.
"""

from magnetar.arrow.errors import (
    AccessDeniedError,
    CorruptDataError,
    DataLossError,
    MagnetarArrowError,
    MemoryLimitError,
    OffsetError,
    OptionError,
    SchemaMismatchError,
    TopicNotFoundError,
    UnreachableError,
    WorkerLostError,
)
from magnetar.arrow.reading import Scan, read, scan
from magnetar.arrow.tables import Changes, changes, table

__all__ = [
    "AccessDeniedError",
    "Changes",
    "CorruptDataError",
    "DataLossError",
    "MagnetarArrowError",
    "MemoryLimitError",
    "OffsetError",
    "OptionError",
    "Scan",
    "SchemaMismatchError",
    "TopicNotFoundError",
    "UnreachableError",
    "WorkerLostError",
    "changes",
    "read",
    "scan",
    "table",
]
