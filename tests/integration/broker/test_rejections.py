"""What must fail, and with exactly which code; whoever else is on the topic goes on.

Over a raw connection: the official client turns several codes into one, and never sends most of
these commands. Each row is told the topic, does what comes before over a connection of its own or
over the same one, and returns the command that must fail.
"""

import threading

import pytest

from magnetar.sdk.wire import BaseCommand, encode_command
from magnetar.sdk.wire import pulsar_pb2 as pb
from tests.integration.broker.raw_connection import RawConnection
from tests.integration.broker.refusing import (
    Place,
    Row,
    after,
    after_own,
    code_of,
    command,
    numbers,
    spoiled,
)
from tests.standalone import Standalone

ODD_NAMES = ("", "persistent://", "persistent://a/b", "://x", "a/b", "other://public/default/x")

_SHARED = pb.CommandSubscribe.Shared
_KEY_SHARED = pb.CommandSubscribe.Key_Shared
_EXCLUSIVE_MODE = pb.ProducerAccessMode.Exclusive
_NO_NAMESPACE = "persistent://public/nowhere/topic"
_NO_TENANT = "persistent://nobody/default/topic"
_BOTH = {"message_id": pb.MessageIdData(ledgerId=1, entryId=1), "message_publish_time": 1}

ROWS: dict[str, tuple[int, Row]] = {
    "producer of an unknown namespace": (
        pb.TopicNotFound,
        lambda place: place.producer(topic=_NO_NAMESPACE),
    ),
    "producer of an unknown tenant": (
        pb.TopicNotFound,
        lambda place: place.producer(topic=_NO_TENANT),
    ),
    "producer with a name that is taken": (
        pb.ProducerBusy,
        after(
            lambda place: place.producer(producer_name="p"),
            lambda place: place.producer(producer_name="p"),
        ),
    ),
    "second exclusive producer": (
        pb.ProducerFenced,
        after(
            lambda place: place.producer(producer_access_mode=_EXCLUSIVE_MODE),
            lambda place: place.producer(producer_access_mode=_EXCLUSIVE_MODE),
        ),
    ),
    "shared producer beside an exclusive one": (
        pb.ProducerBusy,
        after(lambda place: place.producer(producer_access_mode=_EXCLUSIVE_MODE), Place.producer),
    ),
    "exclusive producer beside a shared one": (
        pb.ProducerFenced,
        after(Place.producer, lambda place: place.producer(producer_access_mode=_EXCLUSIVE_MODE)),
    ),
    "consumer of an unknown namespace": (
        pb.TopicNotFound,
        lambda place: place.subscribe(topic=_NO_NAMESPACE),
    ),
    "consumer that may not create its topic": (
        pb.TopicNotFound,
        lambda place: place.subscribe(force_topic_creation=False),
    ),
    "second exclusive consumer": (pb.ConsumerBusy, after(Place.subscribe, Place.subscribe)),
    "consumer of another type": (
        pb.ConsumerBusy,
        after(Place.subscribe, lambda place: place.subscribe(subType=_SHARED)),
    ),
    "exclusive consumer of a shared subscription": (
        pb.ConsumerBusy,
        after(lambda place: place.subscribe(subType=_SHARED), Place.subscribe),
    ),
    "reader of a durable subscription": (
        pb.NotAllowedError,
        after(Place.subscribe, lambda place: place.subscribe(durable=False)),
    ),
    "compacted reading on a shared subscription": (
        pb.NotAllowedError,
        lambda place: place.subscribe(subType=_SHARED, read_compacted=True),
    ),
    "hash ranges that overlap": (
        pb.ConsumerAssignError,
        after(lambda place: place.sticky(1, 0, 100), lambda place: place.sticky(2, 100, 200)),
    ),
    "hash ranges that are upside down": (
        pb.ConsumerAssignError,
        lambda place: place.sticky(1, 100, 0),
    ),
    "hash ranges beside automatic ones": (
        pb.ConsumerBusy,
        after(
            lambda place: place.subscribe(subType=_KEY_SHARED),
            lambda place: place.sticky(2, 0, 100),
        ),
    ),
    "unsubscribe of an unknown consumer": (
        pb.MetadataError,
        lambda _: command("unsubscribe", consumer_id=9),
    ),
    "unsubscribe beside another consumer": (
        pb.MetadataError,
        after(
            lambda place: place.subscribe(subType=_SHARED),
            after_own(
                lambda place: place.subscribe(subType=_SHARED),
                lambda _: command("unsubscribe", consumer_id=1),
            ),
        ),
    ),
    "seek of an unknown consumer": (
        pb.MetadataError,
        lambda _: command("seek", consumer_id=9, message_publish_time=1),
    ),
    "seek to nowhere": (
        pb.MetadataError,
        after_own(Place.subscribe, lambda _: command("seek", consumer_id=1)),
    ),
    "seek to an id and a time": (
        pb.MetadataError,
        after_own(Place.subscribe, lambda _: command("seek", consumer_id=1, **_BOTH)),
    ),
    "last message of an unknown consumer": (
        pb.MetadataError,
        lambda _: command("getLastMessageId", consumer_id=9),
    ),
    "statistics of an unknown consumer": (
        pb.ConsumerNotFound,
        lambda _: command("consumerStats", consumer_id=9),
    ),
    "acknowledgement in a transaction of what was never written": (
        pb.MetadataError,
        after_own(
            Place.subscribe,
            lambda _: command(
                "ack",
                consumer_id=1,
                ack_type=pb.CommandAck.Individual,
                txnid_most_bits=1,
                txnid_least_bits=1,
                message_id=[pb.MessageIdData(ledgerId=1 << 60, entryId=0)],
            ),
        ),
    ),
    "lookup in an unknown namespace": (
        pb.TopicNotFound,
        lambda _: command("lookupTopic", topic=_NO_NAMESPACE),
    ),
    "partitions in an unknown namespace": (
        pb.TopicNotFound,
        lambda _: command("partitionMetadata", topic=_NO_NAMESPACE),
    ),
}


_COORDINATOR = "persistent://pulsar/system/transaction_coordinator_assign-partition-0"

ROWS |= {
    "producer with a name that is no text": (
        pb.MetadataError,
        lambda place: spoiled(place.producer(producer_name="latin"), "latin"),
    ),
    "producer with a name that is too long": (
        pb.NotAllowedError,
        lambda place: place.producer(producer_name="p" * 1025),
    ),
    "producer that knows an epoch to come": (
        pb.ProducerFenced,
        after(
            lambda place: place.producer(producer_access_mode=_EXCLUSIVE_MODE, topic_epoch=7),
            lambda place: place.producer(producer_access_mode=_EXCLUSIVE_MODE, topic_epoch=3),
        ),
    ),
    "subscription without a name": (
        pb.ProducerBusy,
        lambda place: place.subscribe(subscription=""),
    ),
    "subscription of blanks": (pb.ProducerBusy, lambda place: place.subscribe(subscription="  ")),
    "subscription of the broker itself": (
        pb.ProducerBusy,
        lambda place: place.subscribe(subscription="__compaction"),
    ),
    "subscription with a name that is too long": (
        pb.ProducerBusy,
        lambda place: place.subscribe(subscription="ü" * 513),
    ),
    "subscription with a name that is no text": (
        pb.ProducerBusy,
        lambda place: spoiled(place.subscribe(subscription="latin"), "latin"),
    ),
    "consumer with a name that is no text": (
        pb.MetadataError,
        lambda place: spoiled(place.subscribe(consumer_name="latin"), "latin"),
    ),
    "consumer of an unknown tenant": (
        pb.TopicNotFound,
        lambda place: place.subscribe(topic=_NO_TENANT),
    ),
    "first subscription of a producer without a name": (
        pb.ProducerBusy,
        lambda place: place.producer(initial_subscription_name=" "),
    ),
    "lookup in an unknown tenant": (
        pb.TopicNotFound,
        lambda _: command("lookupTopic", topic=_NO_TENANT),
    ),
    "lookup for a listener that is no text": (
        pb.MetadataError,
        lambda place: spoiled(
            command("lookupTopic", topic=place.topic, advertised_listener_name="latin"), "latin"
        ),
    ),
    "partitions of a topic that may not appear": (
        pb.TopicNotFound,
        lambda place: command(
            "partitionMetadata", topic=place.topic, metadata_auto_creation_enabled=False
        ),
    ),
    "topics of what is no namespace": (
        pb.TopicNotFound,
        lambda _: command("getTopicsOfNamespace", namespace="nowhere"),
    ),
    "unsubscribe of another connection's consumer": (
        pb.MetadataError,
        after(Place.subscribe, lambda _: command("unsubscribe", consumer_id=1)),
    ),
    "seek of another connection's consumer": (
        pb.MetadataError,
        after(Place.subscribe, lambda _: command("seek", consumer_id=1, message_publish_time=1)),
    ),
}

ROWS |= {
    "transaction that has no time": (pb.NotAllowedError, lambda _: command("newTxn")),
    "transaction of a coordinator that is not there": (
        pb.NotAllowedError,
        lambda _: command("newTxn", tc_id=1000, txn_ttl_millis=1000),
    ),
    "coordinator that is not there": (
        pb.NotAllowedError,
        lambda _: command("tcClientConnectRequest", tc_id=1000),
    ),
    "topic of a transaction that never was": (
        pb.TransactionNotFound,
        lambda place: command(
            "addPartitionToTxn", txnid_least_bits=1 << 40, partitions=[place.topic]
        ),
    ),
    "subscription of a transaction that never was": (
        pb.TransactionNotFound,
        lambda place: command(
            "addSubscriptionToTxn",
            txnid_least_bits=1 << 40,
            subscription=[pb.Subscription(topic=place.topic, subscription="s")],
        ),
    ),
    "end of a transaction that never was": (
        pb.TransactionNotFound,
        lambda _: command("endTxn", txnid_least_bits=1 << 40),
    ),
    "end of a transaction on a topic that is not there": (
        pb.TopicNotFound,
        lambda place: command("endTxnOnPartition", topic=place.topic),
    ),
    "end of a transaction on a subscription of a topic that is not there": (
        pb.TopicNotFound,
        lambda place: command(
            "endTxnOnSubscription",
            subscription=pb.Subscription(topic=place.topic, subscription="s"),
        ),
    ),
    "producer of a coordinator's log": (
        pb.NotAllowedError,
        lambda place: place.producer(topic=_COORDINATOR),
    ),
    "consumer of a coordinator's log": (
        pb.NotAllowedError,
        lambda place: place.subscribe(topic=_COORDINATOR),
    ),
}


_STRING = pb.Schema(name="s", type=pb.Schema.String, schema_data=b"")
_INT32 = pb.Schema(name="i", type=pb.Schema.Int32, schema_data=b"")


def _key_shared(place: Place, consumer_id: int, mode: int, **fields: object) -> BaseCommand:
    meta = pb.KeySharedMeta(keySharedMode=mode, **fields)  # type: ignore[arg-type]
    return place.subscribe(consumer_id, subType=_KEY_SHARED, keySharedMeta=meta)


ROWS |= {
    "compacted reading on a key-shared subscription": (
        pb.NotAllowedError,
        lambda place: place.subscribe(subType=_KEY_SHARED, read_compacted=True),
    ),
    "durable consumer of a reader's subscription": (
        pb.NotAllowedError,
        after(lambda place: place.subscribe(durable=False), Place.subscribe),
    ),
    "subscription of deduplication": (
        pb.ProducerBusy,
        lambda place: place.subscribe(subscription="pulsar.dedup"),
    ),
    "subscription of replication": (
        pb.ProducerBusy,
        lambda place: place.subscribe(subscription="pulsar.repl.other"),
    ),
    "sticky consumer without hash ranges": (
        pb.ConsumerAssignError,
        lambda place: _key_shared(place, 1, pb.STICKY),
    ),
    "hash ranges beyond the last hash": (
        pb.ConsumerAssignError,
        lambda place: place.sticky(1, 0, 65_536),
    ),
    "hash ranges of one consumer that overlap": (
        pb.ConsumerAssignError,
        lambda place: _key_shared(
            place,
            1,
            pb.STICKY,
            hashRanges=[pb.IntRange(start=0, end=9), pb.IntRange(start=9, end=20)],
        ),
    ),
    "delivery in order beside delivery out of order": (
        pb.ConsumerBusy,
        after(
            lambda place: _key_shared(place, 1, pb.AUTO_SPLIT, allowOutOfOrderDelivery=True),
            lambda place: _key_shared(place, 2, pb.AUTO_SPLIT),
        ),
    ),
    "unsubscribe of a standby": (
        pb.MetadataError,
        after(
            lambda place: place.subscribe(subType=pb.CommandSubscribe.Failover),
            after_own(
                lambda place: place.subscribe(subType=pb.CommandSubscribe.Failover),
                lambda _: command("unsubscribe", consumer_id=1),
            ),
        ),
    ),
    "producer of another schema": (
        pb.IncompatibleSchema,
        after(
            lambda place: place.producer(schema=_STRING),
            lambda place: place.producer(schema=_INT32),
        ),
    ),
    "consumer of another schema": (
        pb.IncompatibleSchema,
        after(
            lambda place: place.producer(schema=_STRING),
            lambda place: place.subscribe(schema=_INT32),
        ),
    ),
    "schema of a topic that has none": (
        pb.TopicNotFound,
        after(Place.producer, lambda place: command("getSchema", topic=place.topic)),
    ),
    "schema of a version that is none": (
        pb.IncompatibleSchema,
        after(
            lambda place: place.producer(schema=_STRING),
            lambda place: command("getSchema", topic=place.topic, schema_version=b""),
        ),
    ),
    "new schema of a topic that nobody uses": (
        pb.TopicNotFound,
        lambda place: command("getOrCreateSchema", topic=place.topic, schema=_STRING),
    ),
    "watch of a pattern that is too long": (
        pb.NotAllowedError,
        lambda _: command(
            "watchTopicList", watcher_id=1, namespace="public/default", topics_pattern="x" * 51
        ),
    ),
    "watch of a pattern that is none": (
        pb.NotAllowedError,
        lambda _: command(
            "watchTopicList", watcher_id=1, namespace="public/default", topics_pattern="("
        ),
    ),
    "watch of what is no namespace": (
        pb.TopicNotFound,
        lambda _: command("watchTopicList", watcher_id=1, namespace="nowhere", topics_pattern=".*"),
    ),
    "lookup for a listener that nobody has": (
        pb.NotAllowedError,
        lambda place: command(
            "lookupTopic", topic=place.topic, advertised_listener_name="elsewhere"
        ),
    ),
}


def _producer_of(name: str) -> Row:
    return lambda place: place.producer(topic=name)


def _consumer_of(name: str) -> Row:
    return lambda place: place.subscribe(topic=name)


def _lookup_of(name: str) -> Row:
    return lambda _: command("lookupTopic", topic=name)


def _partitions_of(name: str) -> Row:
    return lambda _: command("partitionMetadata", topic=name)


for _name in ODD_NAMES:
    ROWS[f"lookup of {_name!r}"] = (pb.InvalidTopicName, _lookup_of(_name))
    ROWS[f"partitions of {_name!r}"] = (pb.InvalidTopicName, _partitions_of(_name))
    ROWS[f"producer of {_name!r}"] = (pb.InvalidTopicName, _producer_of(_name))
    ROWS[f"consumer of {_name!r}"] = (pb.InvalidTopicName, _consumer_of(_name))


@pytest.mark.parametrize("name", ROWS)
def test_it_is_refused_with_exactly_this_code(server: Standalone, name: str) -> None:
    code, row = ROWS[name]
    topic = f"persistent://public/default/refused-{next(numbers)}"
    with RawConnection(server.port) as own, RawConnection(server.port) as other:
        own.connect()
        other.connect()
        refused = row(Place(topic, own, other))
        living = threading.Thread(target=other.receive_until_closed)
        living.start()  # it answers pings: nobody is taken for dead
        own.send(refused if isinstance(refused, bytes) else encode_command(refused))
        assert code_of(own.receive()) == code
        own.ping()
        assert living.is_alive(), "the other connection was closed"
        other.finish_sending()
        living.join()
