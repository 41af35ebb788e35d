"""Topics as Arrow record batches: for pandas, polars, DuckDB and everything else that reads Arrow.

from magnetar.arrow import read

read("flights", service_url="pulsar://…", admin_url="http://…").read_pandas()

Guide: docs/arrow.md.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
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

_MODULES = {
    **dict.fromkeys(("Scan", "read", "scan"), "reading"),
    **dict.fromkeys(("Changes", "changes", "table"), "tables"),
}
"""Module of each exported name that is not an error."""


def __getattr__(name: str) -> Any:
    """Import a reader at its first use: Spark queries need `stored` alone."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES.get(name, 'errors')}"), name)
