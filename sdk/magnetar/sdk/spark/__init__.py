"""Spark's way to and from topics: `format("magnetar")`, batch and stream.

from magnetar.sdk.spark import register

register(spark)
spark.read.format("magnetar").option("service.url", …).option("topic", …).load()

Guide: docs/spark.md. This is the one part of the SDK that reads the ledger store.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from magnetar.sdk.spark.data_source import MagnetarDataSource, register

__all__ = ["MagnetarDataSource", "register"]


def __getattr__(name: str) -> Any:
    """Import PySpark only when its data source is asked for: most of this package does without."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from magnetar.sdk.spark import data_source

    return getattr(data_source, name)
