"""Writing to topics from Spark, exactly once: see `writer.py`."""

from magnetar.sdk.spark.sink.writer import batch_writer, stream_writer

__all__ = ["batch_writer", "stream_writer"]
