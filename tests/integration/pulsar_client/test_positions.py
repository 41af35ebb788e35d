"""Where reading starts: readers, seek by id and by time, the last message id."""

import pulsar
import pytest

from tests.integration.pulsar_client.support import publish, read_next, receive, receive_payloads

_COUNT = 60
_PAYLOADS = [b"message-%d" % number for number in range(_COUNT)]


@pytest.fixture(params=[False, True], ids=["unbatched", "batched"])
def ids(
    request: pytest.FixtureRequest, client: pulsar.Client, topic: str
) -> list[pulsar.MessageId]:
    """Messages on the topic, in entries of one or of ten."""
    producer = client.create_producer(
        topic,
        batching_enabled=request.param,
        batching_max_messages=10,
        batching_max_publish_delay_ms=1000,
    )
    return publish(producer, _PAYLOADS)


def _read_all(reader: pulsar.Reader) -> list[bytes]:
    payloads = []
    while reader.has_message_available():
        payloads.append(read_next(reader).data())
    return payloads


def test_a_reader_starts_after_the_given_message(
    client: pulsar.Client, topic: str, ids: list[pulsar.MessageId]
) -> None:
    for start in (0, 9, 10, 34, _COUNT - 2):
        reader = client.create_reader(topic, ids[start])
        assert _read_all(reader) == _PAYLOADS[start + 1 :]
        reader.close()


def test_a_reader_starts_with_the_given_message_if_asked_to(
    client: pulsar.Client, topic: str, ids: list[pulsar.MessageId]
) -> None:
    for start in (0, 9, 10, 34, _COUNT - 1):
        reader = client.create_reader(topic, ids[start], start_message_id_inclusive=True)
        assert _read_all(reader) == _PAYLOADS[start:]
        reader.close()


def test_a_reader_from_earliest_reads_all_and_one_from_latest_what_is_new(
    client: pulsar.Client, topic: str, ids: list[pulsar.MessageId]
) -> None:
    assert len(ids) == _COUNT
    latest = client.create_reader(topic, pulsar.MessageId.latest)
    assert not latest.has_message_available()
    assert _read_all(client.create_reader(topic, pulsar.MessageId.earliest)) == _PAYLOADS
    publish(client.create_producer(topic), [b"new"])
    assert _read_all(latest) == [b"new"]


def test_a_reader_of_an_empty_topic_has_nothing(client: pulsar.Client, topic: str) -> None:
    reader = client.create_reader(topic, pulsar.MessageId.earliest)
    assert not reader.has_message_available()
    publish(client.create_producer(topic), [b"first"])
    assert _read_all(reader) == [b"first"]


@pytest.mark.parametrize("inclusive", [True, False], ids=["inclusive", "exclusive"])
@pytest.mark.parametrize("kind", ["Exclusive", "Failover", "Shared"])
def test_seek_by_id_delivers_from_that_message(
    client: pulsar.Client, topic: str, ids: list[pulsar.MessageId], kind: str, inclusive: bool
) -> None:
    consumer = client.subscribe(
        topic,
        "s",
        consumer_type=getattr(pulsar.ConsumerType, kind),
        initial_position=pulsar.InitialPosition.Earliest,
        start_message_id_inclusive=inclusive,
    )
    assert receive_payloads(consumer, _COUNT) == _PAYLOADS
    for start in (40, 0, 34):  # The client itself drops what comes before, also inside a batch.
        consumer.seek(ids[start])
        expected = _PAYLOADS[start if inclusive else start + 1 :]
        assert receive_payloads(consumer, len(expected)) == expected


def test_seek_to_earliest_and_latest(
    client: pulsar.Client, topic: str, ids: list[pulsar.MessageId]
) -> None:
    assert len(ids) == _COUNT
    consumer = client.subscribe(topic, "s")
    consumer.seek(pulsar.MessageId.earliest)
    assert receive_payloads(consumer, 5) == _PAYLOADS[:5]
    consumer.seek(pulsar.MessageId.latest)
    publish(client.create_producer(topic), [b"new"])
    assert receive_payloads(consumer, 1) == [b"new"]


def test_seek_by_time_delivers_what_was_published_since(client: pulsar.Client, topic: str) -> None:
    producer = client.create_producer(topic)
    publish(producer, [b"old-%d" % number for number in range(30)])
    reader = client.create_reader(topic, pulsar.MessageId.earliest)
    last_old_ms = max(read_next(reader).publish_timestamp() for _ in range(30))
    # The client stamps milliseconds: publish until the clock has moved on from the last of the old.
    new: list[bytes] = []
    first_new_ms = last_old_ms
    while first_new_ms <= last_old_ms:
        publish(producer, [b"between"])
        first_new_ms = read_next(reader).publish_timestamp()
    new = [b"new-%d" % number for number in range(30)]
    publish(producer, new)
    consumer = client.subscribe(topic, "s", initial_position=pulsar.InitialPosition.Earliest)
    consumer.seek(first_new_ms)
    assert receive_payloads(consumer, 31) == [b"between", *new]
    consumer.seek(1)
    assert receive(consumer).data() == b"old-0"


def test_a_reader_seeks_too(client: pulsar.Client, topic: str, ids: list[pulsar.MessageId]) -> None:
    reader = client.create_reader(topic, pulsar.MessageId.earliest)
    assert _read_all(reader) == _PAYLOADS
    reader.seek(ids[30])
    assert read_next(reader).data() == _PAYLOADS[31]
    reader.seek(pulsar.MessageId.earliest)
    assert read_next(reader).data() == _PAYLOADS[0]


def test_the_last_message_id_is_that_of_the_last_message(
    client: pulsar.Client, topic: str, ids: list[pulsar.MessageId]
) -> None:
    consumer = client.subscribe(topic, "s")
    last = consumer.get_last_message_id()
    assert (last.ledger_id(), last.entry_id(), last.batch_index()) == (
        ids[-1].ledger_id(),
        ids[-1].entry_id(),
        ids[-1].batch_index(),
    )


def test_the_last_message_id_of_an_empty_topic_is_none(client: pulsar.Client, topic: str) -> None:
    consumer = client.subscribe(topic, "s")
    assert consumer.get_last_message_id().entry_id() == -1


def test_message_ids_grow_and_survive_serialization(ids: list[pulsar.MessageId]) -> None:
    positions = [(each.ledger_id(), each.entry_id(), each.batch_index()) for each in ids]
    assert positions == sorted(set(positions))
    for each in ids:
        assert pulsar.MessageId.deserialize(each.serialize()) == each
