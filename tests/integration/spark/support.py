"""What the tests of the Spark source share: sessions, options, rows."""

import asyncio
import os
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

from pyspark.sql import DataFrame, SparkSession

from magnetar.sdk import Client
from magnetar.sdk.spark import register
from magnetar.sdk.wire.pulsar_pb2 import MessageMetadata
from tests.http_calls import HasHttp, admin
from tests.processes import ROOT


def guide_examples() -> list[str]:
    """The Python examples of the page on Spark, in their order."""
    page = (ROOT / "docs" / "spark.md").read_text()
    return re.findall(r"^```python\n(.*?)^```", page, re.MULTILINE | re.DOTALL)


def replaced(example: str, by: Mapping[str, str]) -> str:
    """An example with what is here for each of the names in it, all of which it must have."""
    for name, here in by.items():
        assert name in example
        example = example.replace(name, here)
    return example


def make_session(master: str, directory: Path, **settings: str) -> SparkSession:
    """A session that keeps its files in `directory`, with the source registered."""
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    # Executors' Python finds the components as this process does.
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, sys.path))
    builder = (
        SparkSession.builder.master(master)
        .appName("magnetar-tests")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.memory", "512m")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.local.dir", str(directory / "local"))
        .config("spark.sql.warehouse.dir", str(directory / "warehouse"))
        # Short lives: what the better compiler would gain is not worth its time.
        .config(
            "spark.driver.extraJavaOptions",
            f"-Dderby.system.home={directory} -XX:TieredStopAtLevel=1 "
            # One JVM runs all tests of a worker: with the usual 48 MB its compiled code gets full.
            "-XX:ReservedCodeCacheSize=240m",
        )
    )
    for name, value in settings.items():
        builder = builder.config(name.replace("__", "."), value)
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    register(session)
    return session


class HasBookies(HasHttp, Protocol):
    """A server with an admin interface that also says where its brokers and its metadata are."""

    @property
    def url(self) -> str: ...
    @property
    def metadata_url(self) -> str: ...


def options_for(server: HasBookies, **options: str) -> dict[str, str]:
    """Options that read directly from the server's bookies."""
    return {
        "service.url": server.url,
        "admin.url": server.http_url,
        "metadata.url": server.metadata_url,
        **options,
    }


def load(spark: SparkSession, options: Mapping[str, str]) -> DataFrame:
    """A batch query."""
    return spark.read.format("magnetar").options(**options).load()


async def publish_in_chunks(server: HasBookies, topic: str, chunks: list[bytes]) -> None:
    """A message with each of its chunks in a ledger of its own, one before it and one behind."""
    async with Client(server.url) as client, await client.producer(topic) as producer:
        await producer.send(b"first")
        for number, chunk in enumerate(chunks):
            await asyncio.to_thread(admin, server, "PUT", f"{topic.replace('://', '/')}/unload")
            fields = MessageMetadata(
                uuid="u",
                chunk_id=number,
                num_chunks_from_msg=len(chunks),
                total_chunk_msg_size=sum(map(len, chunks)),
            )
            await producer.send_entry(
                chunk, messages=0, sequence_id=5, extra=fields.SerializePartialToString()
            )
            await producer.flush()
        await producer.send(b"last")


def keep_topics(server: HasHttp) -> None:
    """Topics without subscriptions stay, however long a test takes to come to them."""
    policy = {
        "inactiveTopicDeleteMode": "delete_when_no_subscriptions",
        "maxInactiveDurationSeconds": 3_600,
        "deleteWhileInactive": False,
    }
    admin(server, "POST", "namespaces/public/default/inactiveTopicPolicies", policy)
