"""Spark's way to and from topics: `format("magnetar")`, batch and stream.

from magnetar.sdk.spark import register

register(spark)
spark.read.format("magnetar").option("service.url", …).option("topic", …).load()

Guide: docs/spark.md. This is the one part of the SDK that reads the ledger store, by
`magnetar.arrow.stored`.
"""

from magnetar.sdk.spark.data_source import MagnetarDataSource, register

__all__ = ["MagnetarDataSource", "register"]
