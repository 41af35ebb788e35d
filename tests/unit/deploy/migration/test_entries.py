import pytest

from magnetar.broker.features.replication.copies import copy_in_entry
from magnetar.broker.features.replication.names import parse_replicator
from magnetar.broker.features.replication.source_marks import START
from magnetar.deploy.migration.entries import (
    Credit,
    copy_of,
    entry_to_send,
    producer_name,
    source_of,
)
from magnetar.ledger.position import Position
from magnetar.sdk.wire import MessageMetadata, check_checksum, encode_payload, split_payload
from magnetar.sdk.wire.pulsar_pb2 import KeyValue, SourcePosition

SOURCE = source_of("java")


def metadata(**fields: object) -> MessageMetadata:
    return MessageMetadata(producer_name="p", sequence_id=7, publish_time=1000, **fields)  # type: ignore[arg-type]


def sent(meta: MessageMetadata, *, previous: Position = START, schema: bytes = b"") -> bytes:
    entry = encode_payload(meta.SerializeToString(), b"body")
    place = Position(5, 9)
    return entry_to_send(entry, meta, SOURCE, place, previous, schema=schema)


def test_an_entry_keeps_everything_but_gets_its_place() -> None:
    meta = metadata(
        partition_key="k",
        event_time=5,
        num_messages_in_batch=3,
        properties=[KeyValue(key="a", value="b")],
    )
    copy = sent(meta)
    found, body_at = split_payload(copy)
    assert check_checksum(copy)
    assert copy[body_at:] == b"body"
    assert copy_of(copy, SOURCE) == Position(5, 9)
    found.ClearField("replicated_from")
    found.ClearField("magnetar_source")
    assert found == meta


def test_a_copy_names_the_one_before_it() -> None:
    first, second = (
        copy_in_entry(sent(metadata())),
        copy_in_entry(sent(metadata(), previous=Position(5, 8))),
    )
    assert first is not None
    assert second is not None
    assert (first.place.previous, second.place.previous) == (START, Position(5, 8))


def test_what_an_earlier_replication_said_is_replaced() -> None:
    former = SourcePosition(
        incarnation=3, ledger_id=1, entry_id=2, previous_ledger_id=1, previous_entry_id=1
    )
    found = copy_in_entry(sent(metadata(replicated_from="west", magnetar_source=former)))
    assert found is not None
    assert (found.source, found.place) == (SOURCE, (Position(5, 9), START))


def test_the_schema_of_a_message_is_the_one_at_the_target() -> None:
    version, other = (2).to_bytes(8, "big"), (1).to_bytes(8, "big")
    same, _ = split_payload(sent(metadata(schema_version=version), schema=version))
    changed, _ = split_payload(sent(metadata(schema_version=version), schema=other))
    assert (same.schema_version, changed.schema_version) == (version, other)


def test_ids_of_transactions_do_not_travel() -> None:
    found, _ = split_payload(sent(metadata(txnid_most_bits=1, txnid_least_bits=2)))
    assert not found.HasField("txnid_most_bits")
    assert not found.HasField("txnid_least_bits")


def test_a_message_of_others_is_no_copy_of_this_source() -> None:
    entry = encode_payload(metadata().SerializeToString(), b"body")
    assert copy_of(entry, SOURCE) is None
    assert copy_of(sent(metadata()), source_of("other")) is None


def test_the_producer_is_taken_for_one_of_a_cluster_that_is_not_the_target() -> None:
    name = parse_replicator(producer_name(SOURCE))
    assert name is not None
    assert (name.source, name.target) == (SOURCE.cluster, "")
    assert SOURCE.cluster != "java"


@pytest.mark.parametrize(("messages", "size"), [(1, 100), (1, 5_000_000), (1000, 100_000)])
def test_credit_never_asks_for_much_more_than_fits(messages: int, size: int) -> None:
    credit = Credit(1 << 20)
    opened = 0
    for _ in range(500):
        opened += credit.ask()
        if opened <= 0:
            break
        opened -= messages
        credit.received(messages, size)
        credit.done(messages)
    assert opened * size // messages <= max(1 << 20, Credit.FIRST * size // messages)
    assert credit.window >= 1


def test_credit_is_asked_for_again_when_entries_are_done_with() -> None:
    credit = Credit(1 << 20)
    asked = credit.ask()
    assert asked == Credit.FIRST
    assert credit.ask() == 0
    for _ in range(asked):
        credit.received(1, 1 << 20)
    assert credit.ask() == 0
    for _ in range(asked):
        credit.done(1)
    assert credit.ask() == 1


def test_an_entry_of_many_messages_does_not_stop_the_flow() -> None:
    credit = Credit(1 << 20)
    credit.ask()
    credit.received(1000, 10)
    credit.done(1000)
    assert credit.ask() > 0


@pytest.mark.parametrize(("messages", "at_once"), [(3, 1), (400, 16), (7_000, 1)])
def test_a_broker_that_sends_more_than_was_asked_for_is_asked_for_more(
    messages: int, at_once: int
) -> None:
    """Entries go out whole, and Apache Pulsar reads as many as it has credit before it knows that
    they are batches. What was too much counts against what follows."""
    credit, permits = Credit(1 << 20), 0
    for _ in range(1_000):
        permits += credit.ask()
        assert permits > 0, "nothing would ever come again"
        for _ in range(at_once):
            permits -= messages
            credit.received(messages, 10 * messages)
        for _ in range(at_once):
            credit.done(messages)
