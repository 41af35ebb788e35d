"""Spark data source for topics: `format("magnetar")`, batch and stream.

from magnetar.sdk.spark import register

register(spark)
spark.read.format("magnetar").option("service.url", …).option("topic", …).load()

Guide: docs/spark.md. This is the one part of the SDK that reads the ledger store, through
`magnetar.arrow.stored`.
"""

from typing import TYPE_CHECKING, Any

from magnetar.sdk.spark.data_source import MagnetarDataSource, register

if TYPE_CHECKING:
    from magnetar.sdk.spark.lag import LagListener, QueryLag, TopicLag, lag_of

__all__ = ["LagListener", "MagnetarDataSource", "QueryLag", "TopicLag", "lag_of", "register"]

_OF_LAG = ("LagListener", "QueryLag", "TopicLag", "lag_of")


def __getattr__(name: str) -> Any:
    """Import the lag functions at their first use: executors import this package for every task."""
    if name not in _OF_LAG:
        raise AttributeError(f"module {__name__} has no attribute {name}")
    from magnetar.sdk.spark import lag

    return getattr(lag, name)
