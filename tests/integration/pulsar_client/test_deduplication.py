"""Deduplication with the official client: what is sent again is there once, whatever happens."""

import threading
from collections.abc import Callable, Iterator
from urllib.parse import quote

import pulsar
import pytest

from tests.http_calls import admin, topic_path
from tests.integration.pulsar_client.support import Sent, connect, read_next
from tests.standalone import Standalone
from tests.waiting import wait_until

_NAME = "the producer"
_BATCH = 10


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Standalone]:
    """A server of its own, which is killed; its topics deduplicate."""
    settings = {"DEDUPLICATION": "true", "DEDUP_SNAPSHOT_ENTRIES": "100"}
    data = tmp_path_factory.mktemp("deduplicating") / "data"
    with Standalone(data, settings=settings) as standalone:
        yield standalone
        standalone.assert_log_clean()


@pytest.fixture
def topic(request: pytest.FixtureRequest) -> str:
    return f"persistent://public/default/{quote(request.node.name, safe='')}"


def _kill(server: Standalone, _topic: str) -> None:
    server.kill()
    server.start()


def _restart(server: Standalone, _topic: str) -> None:
    assert server.terminate() == 0
    server.start()


def _unload(server: Standalone, topic: str) -> None:
    admin(server, "PUT", f"{topic_path(topic)}/unload")


_cases = pytest.mark.parametrize(
    ("event", "batched"), [(_kill, False), (_kill, True), (_restart, False), (_unload, True)]
)
_batching = pytest.mark.parametrize("batched", [False, True])


def _producer(
    client: pulsar.Client, topic: str, *, batched: bool, **options: object
) -> pulsar.Producer:
    return client.create_producer(
        topic,
        producer_name=_NAME,
        batching_enabled=batched,
        batching_max_messages=_BATCH,
        batching_max_publish_delay_ms=60_000,
        **options,
    )


def _send(producer: pulsar.Producer, numbers: range) -> list[pulsar.MessageId]:
    """Messages with sequence ids from 1 on; batches are the same each time.

    To the client, a sequence id of 0 is none.
    """
    sent = Sent(len(numbers))
    for at, number in enumerate(numbers):
        producer.send_async(b"%d" % number, sent.callback(at), sequence_id=number + 1)
        if number % _BATCH == _BATCH - 1:
            producer.flush()
    producer.flush()
    return sent.wait_all()


def _read_all(client: pulsar.Client, topic: str) -> list[int]:
    reader = client.create_reader(topic, pulsar.MessageId.earliest)
    numbers = []
    while reader.has_message_available():
        numbers.append(int(read_next(reader).data()))
    reader.close()
    return numbers


@_cases
def test_what_a_later_process_sends_again_is_there_once(
    server: Standalone, topic: str, event: Callable[[Standalone, str], None], batched: bool
) -> None:
    first = connect(server.url)
    ids = _send(_producer(first, topic, batched=batched), range(250))
    assert all(each.ledger_id() >= 0 for each in ids)
    first.close()
    event(server, topic)

    second = connect(server.url)
    producer = _producer(second, topic, batched=batched)
    assert producer.last_sequence_id() == (241 if batched else 250)
    again = _send(producer, range(300))
    assert [each.ledger_id() < 0 for each in again] == [True] * 250 + [False] * 50
    assert _read_all(second, topic) == list(range(300))
    second.close()


@_batching
@pytest.mark.parametrize("event", [_kill, _unload])
def test_a_producer_that_goes_on_through_it_stores_each_message_once(
    server: Standalone, topic: str, event: Callable[[Standalone, str], None], batched: bool
) -> None:
    """The client sends again by itself what has no receipt."""
    client = connect(server.url)
    producer = client.create_producer(
        topic,
        producer_name=_NAME,
        batching_enabled=batched,
        batching_max_messages=_BATCH,
        block_if_queue_full=True,
        send_timeout_millis=120_000,
    )
    count = 3_000
    sent = Sent(count)
    confirmed = threading.Semaphore(0)

    def callback(number: int) -> Callable[[pulsar.Result, pulsar.MessageId], None]:
        on_result = sent.callback(number)

        def on_sent(result: pulsar.Result, message_id: pulsar.MessageId) -> None:
            on_result(result, message_id)
            confirmed.release()

        return on_sent

    def publish() -> None:
        for number in range(count):
            producer.send_async(b"%d" % number, callback(number))
        producer.flush()

    publishing = threading.Thread(target=publish)
    publishing.start()
    for _ in range(1_000):
        assert confirmed.acquire(timeout=30)
    event(server, topic)
    publishing.join(timeout=120)
    assert not publishing.is_alive()
    sent.wait_all()
    assert _read_all(client, topic) == list(range(count))
    client.close()


def test_an_initial_sequence_id_counts(server: Standalone, topic: str) -> None:
    client = connect(server.url)
    producer = client.create_producer(topic, producer_name=_NAME, initial_sequence_id=9)
    producer.send(b"10")
    producer.close()
    producer = client.create_producer(topic, producer_name=_NAME, initial_sequence_id=9)
    assert producer.send(b"10 again").ledger_id() < 0
    producer.send(b"11")
    producer.close()
    assert client.create_producer(topic, producer_name=_NAME).last_sequence_id() == 11
    assert _read_all(client, topic) == [10, 11]
    client.close()


def test_producers_without_a_name_are_not_confused(server: Standalone, topic: str) -> None:
    client = connect(server.url)
    for number in range(3):
        producer = client.create_producer(topic)
        producer.send(b"%d" % number)
        producer.close()
    assert _read_all(client, topic) == [0, 1, 2]
    client.close()


def test_switching_it_off_and_on_again_loses_nothing(server: Standalone, topic: str) -> None:
    """Each time the topic is loaded anew; what was stored without it is not known after that."""
    client = connect(server.url)
    producer = _producer(client, topic, batched=False)
    _send(producer, range(2))
    _switch(server, topic, is_on=False)
    again = _send(producer, range(2))
    _switch(server, topic, is_on=True)
    once_more = _send(producer, range(2))  # it begins with what is stored from now on
    duplicates = _send(producer, range(2))
    assert all(each.ledger_id() >= 0 for each in (*again, *once_more))
    assert all(each.ledger_id() < 0 for each in duplicates)
    assert _read_all(client, topic) == [0, 1] * 3
    client.close()


def test_partitions_deduplicate_for_themselves(server: Standalone, topic: str) -> None:
    admin(server, "PUT", f"{topic_path(topic)}/partitions", 3)
    for _ in range(2):
        client = connect(server.url)
        producer = client.create_producer(topic, producer_name=_NAME)
        for number in range(30):
            producer.send(b"%d" % number, partition_key=str(number), sequence_id=number + 1)
        client.close()
        admin(server, "PUT", f"{topic_path(topic)}/unload")
    client = connect(server.url)
    found = [number for at in range(3) for number in _read_all(client, f"{topic}-partition-{at}")]
    assert sorted(found) == list(range(30))
    client.close()


def _switch(server: Standalone, topic: str, *, is_on: bool) -> None:
    admin(server, "POST", f"{topic_path(topic)}/deduplicationEnabled", is_on)
    expected = "Enabled" if is_on else "Disabled"
    wait_until(lambda: _stats(server, topic)["deduplicationStatus"] == expected, expected)


def _stats(server: Standalone, topic: str) -> dict[str, object]:
    stats: dict[str, object] = admin(server, "GET", f"{topic_path(topic)}/stats")
    return stats
