"""Deleting and terminating topics under the official client's hands."""

from pathlib import Path

import pulsar
import pytest

from tests.http_calls import call, topic_path
from tests.integration.pulsar_client.support import connect, publish, receive_payloads
from tests.integration.pulsar_client.test_partitioned import create
from tests.standalone import Standalone

COUNT = 20
_PAYLOADS = [b"%d" % number for number in range(COUNT)]


def test_a_terminated_topic_is_read_to_its_end_and_takes_no_more(tmp_path: Path) -> None:
    plain, whole = (f"persistent://public/default/{name}" for name in ("plain", "whole"))
    with Standalone(tmp_path / "data") as server:
        create(server, whole)
        client = connect(server.url)
        for topic, end in ((plain, "terminate"), (whole, "terminate/partitions")):
            for batching in (False, True):
                producer = client.create_producer(topic, batching_enabled=batching)
                publish(producer, _PAYLOADS)
            call(server, "POST", f"{topic_path(topic)}/{end}", expect=200)
            with pytest.raises(pulsar.TopicTerminated):
                client.create_producer(topic)
        client.close()
        server.kill()
        server.start()
        client = connect(server.url)
        for topic in (plain, whole):
            with pytest.raises(pulsar.TopicTerminated):
                client.create_producer(topic)
            consumer = client.subscribe(
                topic, "s", initial_position=pulsar.InitialPosition.Earliest
            )
            assert sorted(receive_payloads(consumer, 2 * COUNT)) == sorted(2 * _PAYLOADS)
            with pytest.raises(pulsar.Timeout):
                consumer.receive(timeout_millis=200)
        client.close()


@pytest.mark.parametrize("is_partitioned", [False, True])
def test_a_deleted_topic_begins_anew(
    server: Standalone, client: pulsar.Client, topic: str, is_partitioned: bool
) -> None:
    suffix = "/partitions" if is_partitioned else ""
    if is_partitioned:
        create(server, topic)
    consumer = client.subscribe(topic, "s")
    producer = client.create_producer(topic)
    publish(producer, _PAYLOADS)
    call(server, "DELETE", topic_path(topic) + suffix, expect=412)
    consumer.close()
    producer.close()
    call(server, "DELETE", f"{topic_path(topic)}{suffix}?force=true", expect=204)
    call(server, "DELETE", topic_path(topic) + suffix, expect=404)
    assert client.get_topic_partitions(topic) == [topic]  # Nothing has partitions here any more.
    reader = client.create_reader(topic, pulsar.MessageId.earliest)
    assert not reader.has_message_available()
    reader.close()
