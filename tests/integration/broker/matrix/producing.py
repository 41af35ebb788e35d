"""Producers: access modes, deduplication, chunks, encryption, delays, what a message carries."""

import functools
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pulsar

from tests.integration.broker.matrix.setting import (
    MARKER,
    Case,
    Setting,
    acknowledge,
    assert_drained,
    assert_exact,
    must_fail,
    number_of,
    send,
    take,
)
from tests.integration.pulsar_client.support import receive
from tests.waiting import wait_until


def exclusive_producers(setting: Setting) -> Iterator[None]:
    """The one that is there keeps its place, whatever happens to the broker."""
    access = {"access_mode": pulsar.ProducerAccessMode.Exclusive}
    consumer = setting.subscribe()
    producer = setting.producer(**access)
    send(producer, range(5))
    acknowledge(consumer, take(consumer, 5))
    setting.settle()
    must_fail(pulsar.ProducerFenced, lambda: setting.producer(**access))
    yield
    send(producer, range(5, 10))
    must_fail(pulsar.ProducerFenced, lambda: setting.producer(**access))
    must_fail(pulsar.ProducerBusy, setting.producer)
    messages = take(consumer, 5)
    assert_exact(messages, range(5, 10))


def names_of_producers(setting: Setting) -> Iterator[None]:
    """A name is one producer's."""
    producer = setting.producer(producer_name="the-one")
    must_fail(pulsar.ProducerBusy, lambda: setting.producer(producer_name="the-one"))
    yield
    send(producer, range(3))
    must_fail(pulsar.ProducerBusy, lambda: setting.producer(producer_name="the-one"))
    producer.close()
    setting.producer(producer_name="the-one").close()


def metadata_of_messages(setting: Setting) -> Iterator[None]:
    consumer = setting.subscribe()
    producer = setting.producer(compression_type=pulsar.CompressionType.ZLib)
    properties = {"colour": "blue", "länge": "é"}
    producer.send(b"x-1" * 500, properties=properties, event_timestamp=123, partition_key="k")
    yield
    consumer.close()
    consumer = setting.subscribe()
    message = receive(consumer)
    assert message.data() == b"x-1" * 500
    assert message.properties() == properties
    assert message.event_timestamp() == 123
    assert message.partition_key() == "k"
    assert message.redelivery_count() == 0


def delayed_messages(setting: Setting) -> Iterator[None]:
    """On Shared: not before their time, and nothing waits for them."""
    consumer = setting.subscribe(pulsar.ConsumerType.Shared)
    producer = setting.producer(batching_enabled=False)
    now_ms = int(time.time() * 1000)
    due_ms, much_later_ms = now_ms + 2_000, now_ms + 3_600_000
    producer.send(b"k1-1", partition_key="k1", deliver_at=much_later_ms)
    producer.send(b"k2-2", partition_key="k2", deliver_at=due_ms)
    producer.send(b"k3-3", partition_key="k3")
    came: list[int] = []

    def take_one() -> None:
        (message,) = take(consumer, 1)
        # Due messages may come one tick (1 s) early.
        assert number_of(message) != 2 or int(time.time() * 1000) >= due_ms - 1_000
        came.append(number_of(message))
        acknowledge(consumer, [message])

    while 3 not in came:
        take_one()
    yield
    send(setting.producer(), [MARKER])
    while not {2, MARKER} <= set(came):  # what was acknowledged at the last moment may come again
        take_one()
    assert 1 not in came


def chunked_messages(setting: Setting) -> Iterator[None]:
    """Larger than the broker takes in one piece."""
    setting.subscribe().close()
    producer = setting.producer(batching_enabled=False, chunking_enabled=True)
    large = bytes(range(256)) * (6 << 12)
    producer.send(large, partition_key="k")
    yield
    producer.send(large[::-1], partition_key="k")
    consumer = setting.subscribe()
    for expected in (large, large[::-1]):
        message = receive(consumer)
        assert message.data() == expected
        consumer.acknowledge(message)


def producers_that_wait_or_fence(setting: Setting) -> Iterator[None]:
    """A producer that waits gets its turn when the owner leaves; one that fences does not wait."""
    waiting = {"access_mode": pulsar.ProducerAccessMode.WaitForExclusive}
    fencing = {"access_mode": pulsar.ProducerAccessMode.ExclusiveWithFencing}
    consumer = setting.subscribe()
    owner = setting.producer(**waiting)
    send(owner, range(5))
    acknowledge(consumer, take(consumer, 5))
    setting.settle()
    yield
    send(owner, range(5, 10))
    got: list[pulsar.Producer] = []
    turn = threading.Thread(target=lambda: got.append(setting.producer(**waiting)))
    turn.start()
    wait_until(lambda: all(each["waitingPublishers"] for each in setting.stats()), "it waits")
    assert not got
    owner.close()
    turn.join(30)
    send(got[0], range(10, 15))
    last = setting.producer(**fencing)
    send(last, range(15, 20))
    must_fail(pulsar.PulsarException, lambda: got[0].send(b"k6-20", partition_key="k6"))
    assert_exact(take(consumer, 15), range(5, 20))


def deduplicated_messages(setting: Setting) -> Iterator[None]:
    """What is sent again is there once, although the broker has forgotten everything meanwhile."""
    setting.have_policies(deduplicationEnabled=True)
    consumer = setting.subscribe()
    # This client says of a batch the first id only: batches must be the same each time. Those by
    # key are not in the order of their ids.
    options: dict[str, Any] = {
        "producer_name": "the one",
        "batching_type": pulsar.BatchingType.Default,
        "batching_max_publish_delay_ms": 60_000,
    }
    producer = setting.producer(**options)
    send(producer, range(20), is_numbered=True)
    send(producer, range(20), is_numbered=True)
    messages = take(consumer, 20)
    assert_exact(messages, range(20))
    acknowledge(consumer, messages)
    setting.settle()
    producer.close()
    yield
    producer = setting.producer(**options)
    assert producer.last_sequence_id() > 0
    send(producer, range(20), is_numbered=True)
    send(producer, range(20, 30), is_numbered=True)
    messages = take(consumer, 10)
    assert_exact(messages, range(20, 30))
    acknowledge(consumer, messages)
    assert_drained(setting, consumer)


_one_at_a_time = threading.Lock()


def _keys() -> pulsar.CryptoKeyReader:
    with _one_at_a_time:
        return _made_keys()


@functools.cache
def _made_keys() -> pulsar.CryptoKeyReader:
    """A pair of keys, made once."""
    directory = Path(tempfile.mkdtemp(prefix="keys-"))
    private, public = directory / "private.pem", directory / "public.pem"
    for command in (
        ("genrsa", "-out", private, "2048"),
        ("rsa", "-in", private, "-pubout", "-out", public),
    ):
        subprocess.run(["openssl", *command], check=True, capture_output=True, timeout=30)
    return pulsar.CryptoKeyReader(str(public), str(private))


def encrypted_messages(setting: Setting) -> Iterator[None]:
    """Encrypted messages are passed on as they are: only a client with the key can read them."""
    setting.subscribe().close()
    setting.subscribe(name="blind").close()
    producer = setting.producer(encryption_key="the key", crypto_key_reader=_keys())
    send(producer, range(10))
    yield
    send(producer, range(10, 20))
    consumer = setting.subscribe(crypto_key_reader=_keys())
    assert_exact(take(consumer, 20), range(20))
    blind = setting.subscribe(
        name="blind", crypto_failure_action=pulsar.ConsumerCryptoFailureAction.CONSUME
    )
    (message,) = take(blind, 1)
    assert b"-" not in message.data() or not message.data().startswith(b"k")


CASES: dict[str, Case] = {
    case.__name__: case
    for case in (
        exclusive_producers,
        producers_that_wait_or_fence,
        names_of_producers,
        deduplicated_messages,
        metadata_of_messages,
        delayed_messages,
        chunked_messages,
        encrypted_messages,
    )
}
UNBATCHED = {"delayed_messages", "chunked_messages"}
"""Neither can be in a batch."""
PAIRED = {"producers_that_wait_or_fence", "names_of_producers", "encrypted_messages"}
"""See test_matrix.py."""
