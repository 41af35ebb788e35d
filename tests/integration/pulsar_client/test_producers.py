"""Producers of the official client: access modes, chunks, encryption; through kills and unloads."""

import hashlib
import subprocess
import threading
from collections.abc import Callable, Iterator

import pulsar
import pytest

from tests.http_calls import admin, call, topic_path
from tests.integration.broker.raw_connection import RawConnection
from tests.integration.pulsar_client.support import connect, publish, receive, receive_payloads
from tests.integration.pulsar_client.test_partitioned import create
from tests.standalone import Standalone
from tests.waiting import wait_until

_EXCLUSIVE = pulsar.ProducerAccessMode.Exclusive
_WAIT = pulsar.ProducerAccessMode.WaitForExclusive
_FENCING = pulsar.ProducerAccessMode.ExclusiveWithFencing
_CHUNKED_BYTES = 12 << 20


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Standalone]:
    """A server of its own: it is killed."""
    with Standalone(tmp_path_factory.mktemp("producers") / "data") as standalone:
        yield standalone
        standalone.assert_log_clean()


@pytest.fixture
def client(server: Standalone) -> Iterator[pulsar.Client]:
    connection = connect(server.url)
    yield connection
    connection.close()


def digest(payload: bytes) -> tuple[int, str]:
    """What is compared of a large payload: a difference must be quick to print."""
    return len(payload), hashlib.sha256(payload).hexdigest()


def _kill(server: Standalone, _topic: str) -> None:
    server.kill()
    server.start()


def _unload(server: Standalone, topic: str) -> None:
    call(server, "PUT", f"{topic_path(topic)}/unload", expect=204)


_events = pytest.mark.parametrize("event", [_kill, _unload])


# Access modes


def test_an_exclusive_producer_keeps_others_out(client: pulsar.Client, topic: str) -> None:
    owner = client.create_producer(topic, access_mode=_EXCLUSIVE)
    with pytest.raises(pulsar.ProducerFenced):
        client.create_producer(topic, access_mode=_EXCLUSIVE)
    with pytest.raises(pulsar.ProducerBusy):
        client.create_producer(topic)
    owner.send(b"alone")
    owner.close()
    client.create_producer(topic).send(b"shared")


@_events
def test_an_exclusive_producer_comes_back(
    server: Standalone,
    client: pulsar.Client,
    topic: str,
    event: Callable[[Standalone, str], None],
) -> None:
    owner = client.create_producer(topic, access_mode=_EXCLUSIVE, batching_enabled=True)
    consumer = client.subscribe(topic, "s")
    publish(owner, [b"before"])
    event(server, topic)
    publish(owner, [b"after"])
    assert receive_payloads(consumer, 2)[-1] == b"after"
    with pytest.raises(pulsar.ProducerFenced):
        client.create_producer(topic, access_mode=_EXCLUSIVE)


@_events
def test_an_epoch_that_has_passed_stays_passed(
    server: Standalone, client: pulsar.Client, topic: str, event: Callable[[Standalone, str], None]
) -> None:
    for _ in range(2):
        client.create_producer(topic, access_mode=_EXCLUSIVE).close()
    event(server, topic)
    with RawConnection(server.port) as raw:
        raw.connect()
        for request_id, (topic_epoch, expected) in enumerate(((0, None), (1, 1), (None, 2))):
            answer = raw.produce(
                topic,
                producer_id=request_id,
                producer_access_mode=1,
                **({} if topic_epoch is None else {"topic_epoch": topic_epoch}),
            )
            if expected is None:
                assert answer.error.error == 25, answer  # ProducerFenced
            else:
                assert answer.producer_success.topic_epoch == expected, answer
                raw.close_producer(request_id)


def test_who_waits_gets_its_turn(server: Standalone, client: pulsar.Client, topic: str) -> None:
    owner = client.create_producer(topic, access_mode=_WAIT)
    got: list[pulsar.Producer] = []
    other = connect(server.url)
    waiting = threading.Thread(
        target=lambda: got.append(other.create_producer(topic, access_mode=_WAIT))
    )
    waiting.start()
    wait_until(lambda: _waiting(server, topic) == 1, "a producer waits")
    owner.send(b"first")
    assert not got
    owner.close()
    waiting.join(timeout=30)
    got[0].send(b"second")
    other.close()


def test_a_fenced_producer_is_told(server: Standalone, client: pulsar.Client, topic: str) -> None:
    fenced = client.create_producer(topic, access_mode=_EXCLUSIVE)
    fenced.send(b"old")
    other = connect(server.url)
    owner = other.create_producer(topic, access_mode=_FENCING)
    with pytest.raises(pulsar.PulsarException):
        fenced.send(b"too late")
    owner.send(b"new")
    consumer = client.subscribe(topic, "s", initial_position=pulsar.InitialPosition.Earliest)
    assert receive_payloads(consumer, 2) == [b"old", b"new"]
    other.close()


def _waiting(server: Standalone, topic: str) -> int:
    return int(admin(server, "GET", f"{topic_path(topic)}/stats")["waitingPublishers"])


def test_an_exclusive_producer_has_all_partitions(
    server: Standalone, client: pulsar.Client, topic: str
) -> None:
    create(server, topic)
    owner = client.create_producer(topic, access_mode=_EXCLUSIVE)
    with pytest.raises(pulsar.ProducerFenced):
        client.create_producer(topic, access_mode=_EXCLUSIVE)
    with pytest.raises(pulsar.ProducerBusy):
        client.create_producer(f"{topic}-partition-1")
    other = connect(server.url)
    heir = other.create_producer(topic, access_mode=_FENCING)
    with pytest.raises(pulsar.PulsarException):
        owner.send(b"too late")
    publish(heir, [b"%d" % number for number in range(6)])
    other.close()


# Chunks and encryption


def test_chunks_of_a_message_are_in_one_partition(
    server: Standalone, client: pulsar.Client, topic: str
) -> None:
    create(server, topic)
    consumer = client.subscribe(topic, "s", consumer_type=pulsar.ConsumerType.Shared)
    producer = client.create_producer(
        topic,
        chunking_enabled=True,
        message_routing_mode=pulsar.PartitionsRoutingMode.RoundRobinDistribution,
    )
    sent = {bytes([number]) * _CHUNKED_BYTES for number in range(3)}
    for payload in sent:
        producer.send(payload)
    found = [receive(consumer) for _ in sent]
    assert {digest(each.data()) for each in found} == set(map(digest, sent))
    assert len({each.topic_name() for each in found}) > 1
    for each in found:
        consumer.acknowledge(each)


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> pulsar.CryptoKeyReader:
    folder = tmp_path_factory.mktemp("keys")
    private, public = folder / "private.pem", folder / "public.pem"
    for command in (
        ("genrsa", "-out", private, "2048"),
        ("rsa", "-in", private, "-pubout", "-out", public),
    ):
        subprocess.run(["openssl", *command], check=True, capture_output=True, timeout=30)
    return pulsar.CryptoKeyReader(str(public), str(private))


def test_encrypted_messages_pass_through_partitions(
    server: Standalone, client: pulsar.Client, topic: str, keys: pulsar.CryptoKeyReader
) -> None:
    create(server, topic)
    producer = client.create_producer(topic, encryption_key="the key", crypto_key_reader=keys)
    readers = [
        client.subscribe(topic, f"s{number}", crypto_key_reader=keys, consumer_type=kind)
        for number, kind in enumerate((pulsar.ConsumerType.Shared, pulsar.ConsumerType.KeyShared))
    ]
    sent = [b"secret %d" % number for number in range(20)]
    publish(producer, [(f"k{number % 5}", payload) for number, payload in enumerate(sent)])
    for reader in readers:
        assert sorted(receive(reader).data() for _ in sent) == sorted(sent)


@_events
def test_chunks_pass_through_unchanged(
    server: Standalone,
    client: pulsar.Client,
    topic: str,
    event: Callable[[Standalone, str], None],
) -> None:
    payloads = [bytes([number]) * _CHUNKED_BYTES for number in range(2)]
    # Nobody receives while the connection breaks: the official client drops a message of which it
    # had some chunks, when the first of them comes again, and asks for it by an ack timeout only.
    client.subscribe(topic, "s").close()
    producer = client.create_producer(topic, chunking_enabled=True)
    producer.send(payloads[0], properties={"of": "the whole"})
    event(server, topic)
    producer.send(payloads[1])
    consumer = client.subscribe(topic, "s")
    message = receive(consumer)
    assert digest(message.data()) == digest(payloads[0])
    assert message.properties() == {"of": "the whole"}
    assert digest(receive(consumer).data()) == digest(payloads[1])


@pytest.mark.parametrize(("event", "batched"), [(_kill, False), (_unload, True)])
def test_encrypted_messages_pass_through_unchanged(
    server: Standalone,
    client: pulsar.Client,
    topic: str,
    keys: pulsar.CryptoKeyReader,
    event: Callable[[Standalone, str], None],
    batched: bool,
) -> None:
    producer = client.create_producer(
        topic, encryption_key="the key", crypto_key_reader=keys, batching_enabled=batched
    )
    reading = client.subscribe(
        topic,
        "with the key",
        crypto_key_reader=keys,
        initial_position=pulsar.InitialPosition.Earliest,
    )
    publish(producer, [b"secret %d" % number for number in range(10)])
    event(server, topic)
    publish(producer, [b"secret 10"])
    expected = [b"secret %d" % number for number in range(11)]
    assert receive_payloads(reading, 11) == expected
    blind = client.subscribe(
        topic,
        "without",
        initial_position=pulsar.InitialPosition.Earliest,
        crypto_failure_action=pulsar.ConsumerCryptoFailureAction.CONSUME,
    )
    assert b"secret" not in receive(blind).data()
