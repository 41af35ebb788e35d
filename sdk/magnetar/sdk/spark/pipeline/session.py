"""The Spark session of a job, and how its brokers are reached."""

import os
from dataclasses import dataclass

from pyspark.sql import SparkSession

from magnetar.sdk.spark import register


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerSettings:
    """What every job has to know of the cluster."""

    service_url: str
    admin_url: str
    authentication: str = "none"
    metadata_url: str = ""
    """With it executors read straight from the bookies."""

    def options(self) -> dict[str, str]:
        """For the source and the sink."""
        return {
            "service.url": self.service_url,
            "admin.url": self.admin_url,
            "authentication": self.authentication,
        }

    def source_options(self) -> dict[str, str]:
        found = self.options()
        if self.metadata_url:
            found["metadata.url"] = self.metadata_url
        return found


def spark_session(name: str, master: str = "") -> SparkSession:
    """The session that spark-submit has prepared, or one of this machine.

    `master`: where to run; empty: what spark-submit says, else local[*].
    """
    builder = SparkSession.builder.appName(name)
    if master or "SPARK_ENV_LOADED" not in os.environ:
        builder = builder.master(master or os.environ.get("MASTER") or "local[*]")
    builder = builder.config("spark.sql.session.timeZone", "UTC")
    builder = builder.config("spark.ui.showConsoleProgress", "false")
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    register(session)
    return session
