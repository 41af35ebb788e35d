"""The message index with the official client: exact backlogs, restarts, trimming, finding.

The server gives each entry an index. Its ledgers hold ten entries.
"""

import itertools
from collections.abc import Iterator
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pulsar
import pytest

from tests.http_calls import call, topic_path
from tests.integration.pulsar_client.support import (
    connect,
    publish,
    publish_to,
    read_next,
    receive,
    receive_payloads,
)
from tests.standalone import Standalone
from tests.waiting import wait_until

_SETTINGS = {
    "ENTRY_METADATA": "true",
    "LEDGER_ENTRIES_MAX": "10",
    "LEDGER_AGE_MIN_S": "0",
    "ACK_PERSIST_INTERVAL_MS": "50",
    "RETENTION_CHECK_INTERVAL_S": "0.2",
    "STATS_RATE_INTERVAL_S": "0.2",
}
_numbers = itertools.count()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Standalone]:
    with Standalone(tmp_path_factory.mktemp("indexed") / "data", settings=_SETTINGS) as standalone:
        yield standalone
        assert standalone.terminate() == 0
        standalone.assert_log_clean()


@pytest.fixture
def topic() -> str:
    return f"persistent://public/default/indexed-{next(_numbers)}"


def _backlog(server: Standalone, topic: str, subscription: str = "s") -> int:
    stats = call(server, "GET", f"{topic_path(topic)}/stats", expect=200).json
    found: int = stats["subscriptions"][subscription]["backlogMessages"]
    return found


def _becomes(server: Standalone, topic: str, count: int) -> None:
    wait_until(lambda: _backlog(server, topic) == count, f"a backlog of {count} messages")


def _by_index(server: Standalone, topic: str, index: int, *, expect: int = 200) -> Any:
    path = f"{topic_path(topic)}/getMessageIdByIndex?index={index}"
    return call(server, "GET", path, expect=expect).json


def _index_of(server: Standalone, topic: str, message_id: pulsar.MessageId) -> int:
    """The index of an entry, as REST shows it."""
    path = f"ledger/{message_id.ledger_id()}/entry/{message_id.entry_id()}"
    answer = call(server, "GET", f"{topic_path(topic)}/{path}", expect=200)
    return int(answer.headers["x-pulsar-broker-entry-metadata-index"])


def _payloads(count: int, *, begin: int = 0) -> list[bytes]:
    return [b"%04d" % number for number in range(begin, begin + count)]


@pytest.mark.parametrize("kind", ["Exclusive", "Failover", "Shared", "KeyShared"])
@pytest.mark.parametrize("batched", [False, True], ids=["unbatched", "batched"])
def test_the_official_client_gets_its_messages_as_they_were_sent(
    server: Standalone, client: pulsar.Client, topic: str, kind: str, batched: bool
) -> None:
    """At the tail, behind it, and again after a negative acknowledgement."""
    consumer = client.subscribe(
        topic,
        "s",
        consumer_type=getattr(pulsar.ConsumerType, kind),
        negative_ack_redelivery_delay_ms=100,
    )
    payloads = _payloads(35)
    publish_to(client, topic, [("k", each) for each in payloads], batching_enabled=batched)
    consumer.negative_acknowledge(receive(consumer))
    found: set[bytes] = set()
    while len(found) < len(payloads):
        message = receive(consumer)
        found.add(message.data())
        consumer.acknowledge(message)
    assert sorted(found) == payloads
    reader = client.create_reader(topic, pulsar.MessageId.earliest)
    assert [read_next(reader).data() for _ in payloads] == payloads


def test_a_backlog_is_exact_in_messages(
    server: Standalone, client: pulsar.Client, topic: str
) -> None:
    consumer = client.subscribe(
        topic, "s", consumer_type=pulsar.ConsumerType.Shared, batch_index_ack_enabled=True
    )
    batches = [1, 7, 30, 2, 60]
    producer = client.create_producer(
        topic,
        batching_enabled=True,
        batching_max_messages=1_000,
        batching_max_publish_delay_ms=60_000,
    )
    for size in batches:
        publish(producer, _payloads(size))
    assert _backlog(server, topic) == 100
    messages = [receive(consumer) for _ in range(100)]
    for message in messages[1:5] + messages[50:90]:
        consumer.acknowledge(message)
    _becomes(server, topic, 56)
    labels = f'cluster="standalone",namespace="public/default",topic="{topic}",subscription="s"'
    line = f"magnetar_subscription_backlog_messages{{{labels}}} 56.0"
    wait_until(
        lambda: line in call(server, "GET", "/metrics", expect=200).text, "the metric says so"
    )
    for message in messages:
        consumer.acknowledge(message)
    _becomes(server, topic, 0)


def test_a_message_is_found_by_its_index(
    server: Standalone, client: pulsar.Client, topic: str
) -> None:
    client.subscribe(topic, "s").close()
    publish_to(client, topic, _payloads(25), batching_enabled=False)
    ids = publish(
        client.create_producer(topic, batching_enabled=True, batching_max_publish_delay_ms=60_000),
        _payloads(4),
    )
    found = _by_index(server, topic, 27)
    assert (found["ledgerId"], found["entryId"], found["batchIndex"]) == (
        ids[2].ledger_id(),
        ids[2].entry_id(),
        2,
    )
    for index in (0, 9, 10, 24):
        place = _by_index(server, topic, index)
        message_id = pulsar.MessageId(-1, place["ledgerId"], place["entryId"], -1)
        reader = client.create_reader(topic, message_id, start_message_id_inclusive=True)
        assert read_next(reader).data() == b"%04d" % index
        reader.close()
    _by_index(server, topic, 29, expect=404)
    _by_index(server, topic, -1, expect=404)


def test_the_index_goes_on_after_kill_9_and_after_a_stop(tmp_path: Path) -> None:
    topic = "persistent://public/default/killed"
    with Standalone(tmp_path / "data", settings=_SETTINGS) as server:
        last = -1
        for end in (server.kill, server.terminate, server.kill, None):
            client = connect(server.url)
            client.subscribe(topic, "s").close()
            ids = publish(client.create_producer(topic, batching_enabled=False), _payloads(13))
            indexes = [_index_of(server, topic, each) for each in ids]
            assert indexes == list(range(last + 1, last + 14))
            last = indexes[-1]
            assert _backlog(server, topic) == last + 1
            if end is not None:
                client.shutdown()
                end()
                server.start()
        client.close()


def test_the_index_goes_on_after_all_messages_were_trimmed(
    server: Standalone, client: pulsar.Client, topic: str
) -> None:
    consumer = client.subscribe(topic, "s")
    publish_to(client, topic, _payloads(25), batching_enabled=False)
    receive_payloads(consumer, 25)
    _becomes(server, topic, 0)
    call(server, "DELETE", f"{topic_path(topic)}/truncate", expect=204)
    call(server, "PUT", f"{topic_path(topic)}/unload", expect=204)
    ids = publish(client.create_producer(topic, batching_enabled=False), _payloads(2))
    assert [_index_of(server, topic, each) for each in ids] == [25, 26]
    _becomes(server, topic, 2)


def test_a_namespace_switches_the_index_on_and_off_while_it_is_used(
    server: Standalone, client: pulsar.Client
) -> None:
    """Old and new entries are read alike; a backlog over both is not called exact."""
    namespace = "public/switched"
    topic = f"persistent://{namespace}/t"
    call(server, "PUT", f"/admin/v2/namespaces/{namespace}", expect=204)
    policy = f"/admin/v2/namespaces/{namespace}/entryMetadata"
    call(server, "POST", policy, False, expect=204)
    consumer = client.subscribe(topic, "s")
    producer = client.create_producer(topic, batching_enabled=False)
    publish(producer, _payloads(3))
    assert _backlog(server, topic) == -1
    call(server, "GET", f"{topic_path(topic)}/getMessageIdByIndex?index=0", expect=412)
    for begin, is_on in ((3, True), (6, False), (9, True)):
        call(server, "POST", policy, is_on, expect=204)
        has_index = partial(_has_index, server, topic, producer, begin)
        wait_until(lambda: has_index() is is_on, f"the index is {is_on}")  # noqa: B023
    reader = client.create_reader(topic, pulsar.MessageId.earliest)
    payloads = []
    while reader.has_message_available():
        payloads.append(read_next(reader).data())
    assert payloads[:3] == _payloads(3)
    assert set(payloads) == set(_payloads(12))
    assert _backlog(server, topic) == -1
    receive_payloads(consumer, len(payloads))
    _becomes(server, topic, 0)
    publish(producer, _payloads(5))
    _becomes(server, topic, 5)


def _has_index(server: Standalone, topic: str, producer: pulsar.Producer, begin: int) -> bool:
    ids = publish(producer, _payloads(3, begin=begin))
    path = f"ledger/{ids[-1].ledger_id()}/entry/{ids[-1].entry_id()}"
    answer = call(server, "GET", f"{topic_path(topic)}/{path}", expect=200)
    return "x-pulsar-broker-entry-metadata-index" in answer.headers


def test_compaction_keeps_the_newest_message_of_each_key(
    server: Standalone, client: pulsar.Client, topic: str
) -> None:
    client.subscribe(topic, "s").close()
    publish_to(client, topic, [(f"k{at % 3}", each) for at, each in enumerate(_payloads(30))])
    call(server, "PUT", f"{topic_path(topic)}/compaction", expect=204)
    wait_until(
        lambda: (
            call(server, "GET", f"{topic_path(topic)}/compaction", expect=200).json["status"]
            == "SUCCESS"
        ),
        "the topic is compacted",
    )
    reader = client.create_reader(topic, pulsar.MessageId.earliest, is_read_compacted=True)
    assert [read_next(reader).data() for _ in range(3)] == _payloads(3, begin=27)


def test_messages_that_were_sent_twice_are_stored_once_after_a_restart(tmp_path: Path) -> None:
    """Deduplication reads what a producer has sent out of entries with an index."""
    topic = "persistent://public/default/once"
    settings = {**_SETTINGS, "DEDUPLICATION": "true"}
    with Standalone(tmp_path / "data", settings=settings) as server:
        for round_number in range(2):
            client = connect(server.url)
            consumer = client.subscribe(
                topic, "s", initial_position=pulsar.InitialPosition.Earliest
            )
            producer = client.create_producer(
                topic, producer_name="p", batching_enabled=False, send_timeout_millis=30_000
            )
            assert producer.last_sequence_id() == (5 if round_number else -1)
            for number in range(5):  # an id of 0 is none to this client
                producer.send(b"%04d" % number, sequence_id=number + 1)
            assert _backlog(server, topic) == 5
            if not round_number:
                client.shutdown()
                server.kill()
                server.start()
                continue
            assert receive_payloads(consumer, 5) == _payloads(5)
            client.close()


def test_delayed_messages_come_when_they_are_due(
    server: Standalone, client: pulsar.Client, topic: str
) -> None:
    consumer = client.subscribe(topic, "s", consumer_type=pulsar.ConsumerType.Shared)
    producer = client.create_producer(topic)
    producer.send(b"late", deliver_after=timedelta(seconds=4))
    producer.send(b"soon")
    assert [receive(consumer).data() for _ in range(2)] == [b"soon", b"late"]


def test_a_message_in_chunks_comes_as_one(
    server: Standalone, client: pulsar.Client, topic: str
) -> None:
    consumer = client.subscribe(topic, "s")
    large = bytes(range(256)) * (48 << 10)
    producer = client.create_producer(topic, chunking_enabled=True, batching_enabled=False)
    producer.send(large)
    chunks = _backlog(server, topic)
    assert chunks == -(-len(large) // (5 << 20)), "each chunk counts, as with Pulsar"
    message = receive(consumer)
    assert message.data() == large
    consumer.acknowledge(message)
    _becomes(server, topic, 0)


def test_the_largest_message_has_room_for_its_index(
    server: Standalone, client: pulsar.Client, topic: str
) -> None:
    consumer = client.subscribe(topic, "s")
    largest = b"x" * ((5 << 20) - 200)
    client.create_producer(topic, batching_enabled=False).send(largest)
    assert receive(consumer).data() == largest
