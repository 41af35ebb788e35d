"""Slices as executors read them: cut anywhere, with servers missing, through either way."""

import asyncio
import pickle
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pulsar
import pytest
from pyspark.sql.datasource import InputPartition

from magnetar.arrow.stored import broker_reads
from magnetar.arrow.stored.ledger_reads import LedgerReads
from magnetar.arrow.stored.slices import Slice
from magnetar.ledger.errors import NoSuchLedgerOnBookieError
from magnetar.sdk.spark import MagnetarDataSource
from magnetar.sdk.spark.batch_reader import BatchReader
from magnetar.sdk.spark.errors import CorruptDataError, DataLossError, UnreachableError
from tests.cluster import ProcessCluster
from tests.http_calls import admin
from tests.integration.pulsar_client.support import publish_to
from tests.integration.spark.driven import SCHEMA
from tests.integration.spark.support import options_for, publish_in_chunks
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


def bookies_without_ledgers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have bookies answer as if they had collected what was deleted, which takes them a while."""

    def ask(*_: object) -> None:
        raise NoSuchLedgerOnBookieError("no such ledger")

    monkeypatch.setattr(LedgerReads, "_from_bookie", ask)


@pytest.mark.parametrize("mode", ["direct", "broker"])
def test_a_message_in_chunks_is_whole_wherever_slices_are_cut(
    server: Standalone, client: pulsar.Client, topic: str, mode: str
) -> None:
    """A chunked message belongs to the slice of its last chunk, which fetches the others, over
    ledgers too."""
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


@pytest.mark.parametrize("mode", ["direct", "broker"])
async def test_a_message_in_chunks_is_whole_over_ledgers(
    server: Standalone, topic: str, mode: str
) -> None:
    await publish_in_chunks(server, topic, [b"ab", b"cd", b"ef"])
    options = options_for(server, topic=topic, sliceBytes="1", readMode=mode)
    found = await asyncio.to_thread(lambda: read(*planned(options)))
    assert found == [b"first", b"abcdef", b"last"]


async def test_a_message_whose_beginning_is_too_far_away_is_not_passed_over_in_silence(
    server: Standalone, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    await publish_in_chunks(server, topic, [b"ab", b"cd", b"ef"])
    monkeypatch.setattr("magnetar.arrow.stored.slice_reader.CHUNK_LOOK_BACK_ENTRIES_MAX", 1)

    def values(**more: str) -> list[bytes]:
        return read(*planned(options_for(server, topic=topic, sliceBytes="1", **more)))

    with pytest.raises(CorruptDataError, match="its beginning is not among the 1 entries before"):
        await asyncio.to_thread(values)
    assert await asyncio.to_thread(values, failOnDataLoss="false") == [b"first", b"last"]


@pytest.mark.parametrize("mode", ["direct", "broker"])
@pytest.mark.parametrize("fails", ["true", "false"], ids=["fails", "goes on"])
def test_what_was_trimmed_since_it_was_planned_is_noticed(
    server: Standalone,
    client: pulsar.Client,
    topic: str,
    monkeypatch: pytest.MonkeyPatch,
    mode: str,
    fails: str,
) -> None:
    path = topic.replace("://", "/")
    publish_to(client, topic, [b"%d" % number for number in range(10)])
    options = options_for(server, topic=topic, readMode=mode, failOnDataLoss=fails)
    reader, slices = planned(options)
    admin(server, "PUT", f"{path}/unload")
    publish_to(client, topic, [b"later"])
    admin(server, "POST", f"{path}/trim")
    if mode == "direct":
        bookies_without_ledgers(monkeypatch)
    if fails == "true":
        with pytest.raises(DataLossError, match="failOnDataLoss"):
            read(reader, slices)
    else:
        assert read(reader, slices) == []


def test_a_closed_ledger_with_a_wrong_end_is_noticed(
    server: Standalone, client: pulsar.Client, topic: str
) -> None:
    """By what its last entry says: what came behind it would be missing."""
    publish_to(client, topic, [b"%d" % number for number in range(10)], batching_enabled=False)
    admin(server, "PUT", f"{topic.replace('://', '/')}/unload")
    reader, (whole,) = planned(options_for(server, topic=topic))
    assert len(read(reader, [whole])) == 10
    (part,) = whole.parts
    whole.parts = (replace(part, last=part.last - 1),)
    with pytest.raises(CorruptDataError, match="the metadata is not what was written"):
        read(reader, [whole])


def test_a_topic_that_was_emptied_since_it_was_planned_is_noticed_through_brokers(
    server: Standalone, client: pulsar.Client, topic: str
) -> None:
    path = topic.replace("://", "/")
    publish_to(client, topic, [b"%d" % number for number in range(10)])
    reader, slices = planned(options_for(server, topic=topic, readMode="broker"))
    admin(server, "DELETE", f"{path}/truncate")
    with pytest.raises(DataLossError, match="is gone"):
        read(reader, slices)


def test_bookies_are_read_while_brokers_and_a_bookie_are_down(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ledgers are striped over three bookies with two copies each: any one of them may go."""
    monkeypatch.setattr(broker_reads, "PATIENCE_S", 0.0)
    topic = "persistent://public/default/striped"
    values = [b"value-%d" % number for number in range(2_000)]
    with ProcessCluster(tmp_path / "cluster", bookies=3, quorum="3,2,2") as cluster:
        client = pulsar.Client(cluster.url)
        publish_to(client, topic, values, batching_enabled=False)
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
