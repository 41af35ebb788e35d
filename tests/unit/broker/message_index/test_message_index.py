"""The message index of a topic: what is stored, who is sent it, and how it goes on."""

import asyncio
from typing import Any

import pytest

from magnetar.broker.base.entry_metadata import EntryMetadata, bare, metadata_in, prefix_size
from magnetar.broker.features.message_index import MessageIndex, exact_backlogs, initial_properties
from magnetar.broker.features.message_index.index_record import PROPERTY, IndexRecord, record_in
from magnetar.broker.features.replication.copies import as_copy
from magnetar.broker.features.replication.source_marks import CopyPlace, Source
from magnetar.broker.features.retention import trimming
from magnetar.broker.policies.model import Policies
from magnetar.ledger.errors import LogError, LogUnavailableError
from magnetar.ledger.position import Position
from magnetar.sdk.wire import BaseCommand, split_payload
from magnetar.sdk.wire import pulsar_pb2 as pb
from tests.unit.broker.harness import Client, Harness, batch, entry, send_frame
from tests.unit.broker.memory_log import MemoryLog
from tests.unit.broker.memory_parts import TOPIC, feature_of
from tests.unit.broker.message_index.indexed_log import indexed
from tests.waiting import settle

_TYPES = pb.CommandSubscribe


def indexing(log: MemoryLog | None = None, **settings: Any) -> Harness:
    harness = Harness(entry_metadata=True, **settings)
    if log is not None:
        harness.topics.logs[TOPIC] = log
    return harness


async def published(harness: Harness, *payloads: bytes) -> Client:
    """A producer that has published these entries."""
    client = harness.client()
    await client.produce()
    client.send_bytes(
        b"".join(send_frame(0, at, payload=payload) for at, payload in enumerate(payloads))
    )
    await settle()
    return client


def connect(harness: Harness, *, asks: bool, version: int = 20) -> Client:
    client = harness.client(connect=False)
    client.send(
        BaseCommand.CONNECT,
        connect=pb.CommandConnect(
            client_version="c",
            protocol_version=version,
            feature_flags=pb.FeatureFlags(supports_broker_entry_metadata=asks),
        ),
    )
    client.take(BaseCommand.CONNECTED)
    return client


async def payloads_for(client: Client, count: int) -> list[bytes]:
    """What comes with so many MESSAGEs."""
    found: list[bytes] = []
    while len(found) < count:
        command, payload = await client.next_frame()
        if command.type == BaseCommand.MESSAGE:
            found.append(payload)
    return found


def stored(log: MemoryLog) -> list[EntryMetadata | None]:
    return [metadata_in(each) for entries in log.entries.values() for each in entries]


def indexes(log: MemoryLog) -> list[int | None]:
    return [each.index if each is not None else None for each in stored(log)]


# Storing


async def test_each_entry_is_stored_with_the_index_of_its_last_message() -> None:
    harness = indexing()
    sent = [entry(b"a"), batch(3), entry(b"b"), batch(2)]
    await published(harness, *sent)
    assert indexes(harness.log) == [0, 3, 4, 6]
    assert [bare(each) for each in harness.log.entries[7]] == sent
    now_ms = harness.topics.clock.wall_ms()
    for each in stored(harness.log):
        assert each is not None
        assert each.broker_time_ms is not None
        assert now_ms - 60_000 < each.broker_time_ms <= now_ms


async def test_without_the_policy_entries_are_stored_as_they_came() -> None:
    harness = Harness()
    sent = [entry(b"a"), batch(3)]
    await published(harness, *sent)
    assert harness.log.entries[7] == sent
    assert PROPERTY not in harness.log.properties


async def test_the_policy_of_a_namespace_decides() -> None:
    harness = Harness()
    name = "public/default"
    record = harness.policies.namespaces[name]
    policies = record.policies.with_values(entry_metadata=True)
    harness.policies.namespaces[name] = record.model_copy(update={"policies": policies})
    await published(harness, entry())
    assert indexes(harness.log) == [0]


async def test_the_node_says_that_indexes_are_written_before_the_first_of_them_is() -> None:
    harness = indexing()
    log = harness.log
    log.properties_gate = asyncio.Event()
    client = harness.client()
    joining = asyncio.ensure_future(client.produce())
    await settle()
    assert not joining.done()
    log.properties_gate.set()
    await joining
    assert record_in(log.properties) == IndexRecord(0, is_written=True)


def test_a_new_log_says_so_from_the_start() -> None:
    assert record_in(initial_properties(Policies(entry_metadata=True))) == IndexRecord(0, True)
    assert initial_properties(Policies()) == {}


async def test_entries_of_the_brokers_own_count_as_no_message() -> None:
    harness = indexing()
    await published(harness, entry())
    harness.topic.append(_Internal([b"marker"]))
    await settle()
    client = harness.client()
    await client.produce(1)
    client.send_bytes(send_frame(1, 0, payload=entry()))
    await settle()
    assert indexes(harness.log) == [0, 0, 1]


async def test_an_entry_of_the_brokers_own_before_all_messages_has_no_index() -> None:
    harness = indexing()
    await harness.client().produce()
    harness.topic.append(_Internal([b"marker"]))
    await settle()
    assert indexes(harness.log) == [None]
    assert stored(harness.log) != [None], "it has a time"


async def test_a_client_that_sends_a_prefix_is_refused_and_others_go_on() -> None:
    harness = indexing()
    await published(harness, entry())
    forged = harness.log.entries[7][0]
    client = harness.client()
    await client.produce(1)
    client.send_bytes(
        send_frame(1, 0, payload=forged) + send_frame(1, 1, payload=entry(sequence_id=1))
    )
    await settle()
    commands = [command for command, _ in client.received()]
    (error,) = [each.send_error for each in commands if each.type == BaseCommand.SEND_ERROR]
    assert error.error == pb.ServerError.ChecksumError
    assert indexes(harness.log) == [0, 1]


# Going on


async def test_the_next_owner_goes_on_behind_the_last_entry() -> None:
    first = indexing()
    await published(first, entry(), batch(5))
    second = indexing(first.log)
    await published(second, entry(), entry())
    assert indexes(second.log) == [0, 5, 6, 7]


async def test_indexes_of_a_failed_append_are_not_given_again() -> None:
    """Nobody knows whether the entries are stored; what comes behind begins a new stretch."""
    harness = indexing()
    client = await published(harness, entry())
    log = harness.log
    log.is_immediate = False
    client.send_bytes(send_frame(0, 1, payload=batch(3)))
    await settle()
    log.fail(LogUnavailableError("a bookie went away"))
    log.is_immediate = True
    other = harness.client()
    await other.produce(1)
    other.send_bytes(send_frame(1, 0, payload=entry()))
    await settle()
    last = stored(log)[-1]
    assert last is not None
    assert (last.index, last.unbroken_since) == (4, 4)


async def test_after_the_index_was_off_it_goes_on_in_a_new_stretch() -> None:
    first = indexing()
    await published(first, entry(), entry())
    without = Harness()
    without.topics.logs[TOPIC] = first.log
    await published(without, entry(), entry())
    assert record_in(first.log.properties) == IndexRecord(2, is_written=False)
    again = indexing(first.log)
    await published(again, entry())
    assert indexes(first.log) == [0, 1, None, None, 2]
    last = stored(first.log)[-1]
    assert last is not None
    assert last.unbroken_since == 2


async def test_a_switch_opens_the_topic_anew() -> None:
    harness = Harness()
    await published(harness, entry())
    reasons: list[str] = []
    harness.topic.reopen = reasons.append
    harness.topic.apply_policies(harness.topic.policies.with_values(entry_metadata=True))
    assert reasons == ["the message index is switched on or off"]


async def test_a_log_that_is_trimmed_to_its_end_goes_on_where_it_was() -> None:
    first = indexing()
    await published(first, *[entry()] * 5)
    first.log.roll(8)
    await trimming.trim(first.topic, truncates=True)
    assert stored(first.log) == []
    second = indexing(first.log)
    await published(second, entry())
    assert indexes(second.log) == [5]


async def test_nothing_is_trimmed_before_the_node_says_where_the_index_goes_on() -> None:
    harness = indexing()
    await published(harness, *[entry()] * 5)
    harness.log.roll(8)
    harness.log.properties_error = LogUnavailableError("the store is away")
    with pytest.raises(LogUnavailableError):
        await trimming.trim(harness.topic, truncates=True)
    assert indexes(harness.log) == [0, 1, 2, 3, 4]


# Sending


@pytest.mark.parametrize("is_tail", [True, False], ids=["tail", "behind the tail"])
@pytest.mark.parametrize(
    "sub_type", [_TYPES.Exclusive, _TYPES.Failover, _TYPES.Shared, _TYPES.Key_Shared]
)
async def test_who_asks_gets_the_metadata_and_who_does_not_gets_the_message_alone(
    sub_type: int, is_tail: bool
) -> None:
    harness = indexing()
    sent = [entry(b"a", partition_key="k"), batch(3, partition_key="k")]
    if not is_tail:
        await published(harness, *sent)
    clients = [connect(harness, asks=True), connect(harness, asks=False)]
    for client, name in zip(clients, ("asks", "silent"), strict=True):
        await client.subscribe(subscription=name, subType=sub_type)
        client.flow(100)
    if is_tail:
        await published(harness, *sent)
    with_it, without = [await payloads_for(each, 2) for each in clients]
    assert without == sent
    assert with_it == harness.log.entries[7]


@pytest.mark.parametrize("asks", [True, False])
@pytest.mark.parametrize("sub_type", [_TYPES.Shared, _TYPES.Key_Shared])
async def test_what_is_sent_again_is_the_same(sub_type: int, asks: bool) -> None:
    harness = indexing()
    client = connect(harness, asks=asks)
    await client.subscribe(subType=sub_type)
    client.flow(100)
    await published(harness, entry(b"a", partition_key="k"))
    ((_, first),) = await client.messages(1)
    client.redeliver(Position(7, 0))
    ((_, again),) = await client.messages(1)
    assert again == first == (harness.log.entries[7][0] if asks else bare(first))


async def test_clients_from_before_version_18_get_the_message_alone() -> None:
    harness = indexing()
    await published(harness, entry(b"a"))
    client = connect(harness, asks=True, version=17)
    await client.subscribe()
    client.flow(1)
    ((_, payload),) = await client.messages(1)
    assert payload == entry(b"a")


async def test_a_broker_can_keep_the_metadata_to_itself() -> None:
    harness = indexing(entry_metadata_to_clients=False)
    await published(harness, entry(b"a"))
    client = connect(harness, asks=True)
    await client.subscribe()
    client.flow(1)
    ((_, payload),) = await client.messages(1)
    assert payload == entry(b"a")


@pytest.mark.parametrize("fields", [{}, {"txnid_most_bits": 1, "txnid_least_bits": 2}])
def test_an_index_does_not_travel_to_another_cluster(fields: dict[str, int]) -> None:
    sent = entry(b"a", **fields)
    with_index = indexed(7)
    stored_entry = with_index[: prefix_size(with_index)] + sent
    metadata, _ = split_payload(stored_entry)
    copy = as_copy(
        stored_entry,
        metadata,
        Source("east", 1),
        CopyPlace(Position(7, 0), None),
        schema=b"",
    )
    assert prefix_size(copy) == 0
    assert split_payload(copy)[0].replicated_from == "east"


# Backlogs


async def test_a_backlog_is_counted_exactly() -> None:
    harness = indexing()
    client = harness.client()
    await client.subscribe(subType=_TYPES.Shared)
    client.flow(1_000)
    await published(harness, entry(), batch(3), entry(), batch(2), entry())
    assert await exact_backlogs(harness.topic) == {"s": 8}
    client.ack(Position(7, 0), Position(7, 2))
    client.ack_indexes(Position(7, 1), [0b101])
    await settle()
    assert await exact_backlogs(harness.topic) == {"s": 5}
    client.ack(*[Position(7, each) for each in range(5)])
    await settle()
    assert await exact_backlogs(harness.topic) == {"s": 0}


async def test_behind_the_tail_an_entry_is_read_once() -> None:
    first = indexing()
    await published(first, *[batch(3)] * 4)
    harness = indexing(first.log)
    client = harness.client()
    await client.subscribe()
    reads = len(first.log.reads)
    for _ in range(3):
        assert await exact_backlogs(harness.topic) == {"s": 12}
    assert len(first.log.reads) == reads + 1
    assert feature_of(harness.topic, MessageIndex).counted == {"s": 12}


async def test_a_request_that_may_not_read_leaves_what_was_counted() -> None:
    first = indexing()
    await published(first, *[batch(3)] * 4)
    harness = indexing(first.log)
    client = harness.client()
    await client.subscribe(subType=_TYPES.Shared)
    assert await exact_backlogs(harness.topic) == {"s": 12}
    client.flow(10)
    client.ack(Position(7, 2))
    await settle()
    assert await exact_backlogs(harness.topic, reads=False) == {}
    assert feature_of(harness.topic, MessageIndex).counted == {"s": 12}


async def test_a_backlog_that_cannot_be_read_is_not_known() -> None:
    first = indexing()
    await published(first, entry())
    harness = indexing(first.log)
    await harness.client().subscribe()
    first.log.read_error = LogUnavailableError("bookies are away")
    assert await exact_backlogs(harness.topic) == {}
    first.log.read_error = None
    assert await exact_backlogs(harness.topic) == {"s": 1}


async def test_without_an_index_nothing_is_known_exactly() -> None:
    harness = Harness()
    await harness.client().subscribe()
    await published(harness, entry())
    assert await exact_backlogs(harness.topic) == {}
    assert feature_of(harness.topic, MessageIndex).counted is None


class _Internal:
    """An entry of the broker's own."""

    def __init__(self, payloads: list[bytes]) -> None:
        self.payloads = payloads
        self.done: asyncio.Future[Position] = asyncio.get_running_loop().create_future()

    def on_appended(self, ledger_id: int, first_entry_id: int) -> None:
        self.done.set_result(Position(ledger_id, first_entry_id))

    def on_failed(self, error: LogError) -> None:
        self.done.set_exception(error)
