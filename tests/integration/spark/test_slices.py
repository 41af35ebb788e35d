"""Slices as executors read them: cut anywhere, with servers missing, through either way."""

import pickle
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path

import pulsar
import pytest
from pyspark.sql.datasource import EqualTo, GreaterThanOrEqual, InputPartition, LessThan

from magnetar.sdk.spark import MagnetarDataSource
from magnetar.sdk.spark.batch_reader import BatchReader, PushingBatchReader
from magnetar.sdk.spark.errors import UnreachableError
from magnetar.sdk.spark.slices import Slice
from magnetar.sdk.spark.source_options import SourceOptions
from tests.cluster import ProcessCluster
from tests.integration.spark.driven import SCHEMA
from tests.integration.spark.support import admin, options_for, publish
from tests.processes import HOST
from tests.standalone import Standalone


def planned(options: Mapping[str, str]) -> tuple[BatchReader, list[Slice]]:
    """As Spark has it planned on the driver."""
    reader = MagnetarDataSource(dict(options)).reader(SCHEMA)
    assert isinstance(reader, BatchReader)
    return reader, [each for each in reader.partitions() if isinstance(each, Slice)]


def read(reader: BatchReader, slices: list[Slice]) -> list[bytes]:
    """As executors read: each with a copy."""
    values: list[bytes] = []
    for each in slices:
        copy: InputPartition = pickle.loads(pickle.dumps(each))
        for batch in reader.read(copy):
            values += batch.column(0).to_pylist()
    return values


@pytest.mark.parametrize("mode", ["direct", "broker"])
def test_a_message_in_chunks_is_whole_wherever_slices_are_cut(
    server: Standalone, client: pulsar.Client, topic: str, mode: str
) -> None:
    """It belongs to the slice of its last chunk, which fetches the others, over ledgers too."""
    huge = [bytes([65 + number]) * 11_000_000 for number in range(2)]
    producer = client.create_producer(topic, batching_enabled=False, chunking_enabled=True)
    producer.send(b"first")
    producer.send(huge[0])
    producer.send(b"between")
    admin(server, "PUT", f"{topic.replace('://', '/')}/unload")
    producer.send(huge[1])
    producer.send(b"last")
    producer.close()

    reader, slices = planned(options_for(server, topic=topic, sliceBytes="1", readMode=mode))

    assert len(slices) >= 8, "a slice for each entry"
    assert read(reader, slices) == [b"first", huge[0], b"between", huge[1], b"last"]


def test_bookies_are_read_while_brokers_and_a_bookie_are_down(tmp_path: Path) -> None:
    """Ledgers are striped over three bookies with two copies each: any one of them may go."""
    topic = "persistent://public/default/striped"
    values = [b"value-%d" % number for number in range(2_000)]
    with ProcessCluster(tmp_path / "cluster", bookies=3, quorum="3,2,2") as cluster:
        client = pulsar.Client(cluster.url)
        publish(client, topic, values, batching_enabled=False)
        client.close()
        reader, slices = planned(
            {
                "service.url": cluster.url,
                "admin.url": f"http://{HOST}:{cluster.http_port}",
                "metadata.url": cluster.metadata_url,
                "topic": topic,
                "sliceBytes": "20000",
            }
        )
        assert len(slices) > 3
        *bookies, broker = cluster.servers
        broker.kill()
        assert read(reader, slices) == values

        bookies[0].kill()
        assert read(reader, slices) == values

        bookies[1].kill()
        with pytest.raises(UnreachableError, match="cannot be read: bookie"):
            read(reader, slices)


def test_filters_leave_out_ledgers_that_cannot_have_what_is_wanted(
    server: Standalone, client: pulsar.Client, topic: str
) -> None:
    """Spark checks the rows; the source must not leave out any that fits."""
    for number in range(3):
        publish(client, topic, [b"%d" % number] * 5, batching_enabled=False)
        admin(server, "PUT", f"{topic.replace('://', '/')}/unload")
    options = SourceOptions.read(options_for(server, topic=topic), is_stream=False)

    def values(*filters: EqualTo | GreaterThanOrEqual | LessThan) -> set[bytes]:
        reader = PushingBatchReader(options, SCHEMA)
        assert list(reader.pushFilters(list(filters))) == list(filters)
        return set(read(reader, [each for each in reader.partitions() if isinstance(each, Slice)]))

    everything = {b"0", b"1", b"2"}
    time = ("__publishTime",)
    now = datetime.now(UTC)
    assert values() == everything
    assert values(GreaterThanOrEqual(time, now)) == everything, "within the skew of clocks"
    assert values(GreaterThanOrEqual(time, now.replace(year=now.year + 1))) == set()
    assert values(LessThan(time, now.replace(year=now.year + 1))) == everything
    # The first ledger may hold anything that is old; the others were begun later.
    assert values(LessThan(time, now.replace(year=now.year - 1))) == {b"0"}

    reader = client.create_reader(topic, pulsar.MessageId.earliest)
    wanted = [reader.read_next() for _ in range(7)][-1]
    reader.close()
    place = wanted.message_id().serialize()
    assert values(EqualTo(("__messageId",), place)) == {b"1"}
