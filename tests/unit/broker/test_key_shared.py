"""Key_Shared subscriptions: a key at one consumer at a time and in order, whoever comes or goes."""

import base64
from collections.abc import Sequence
from typing import Any

import pytest

from magnetar.broker.topic.dispatch.key_shared import KeySharedDispatcher
from magnetar.broker.topic.dispatch.reasons import Reason
from magnetar.broker.topic.sticky_key import auto_split_hash, key_hash_of, sticky_range_hash
from magnetar.ledger.errors import LogUnavailableError
from magnetar.ledger.position import Position
from magnetar.sdk.wire import BaseCommand, MessageMetadata
from magnetar.sdk.wire import pulsar_pb2 as pb
from tests.unit.broker.harness import Client, Harness, entry, send_frame
from tests.waiting import settle

_KEY_SHARED = pb.CommandSubscribe.Key_Shared


def _at(*entry_ids: int) -> list[Position]:
    return [Position(7, each) for each in entry_ids]


def _sticky(*ranges: tuple[int, int], **fields: Any) -> pb.KeySharedMeta:
    return pb.KeySharedMeta(
        keySharedMode=pb.STICKY,
        hashRanges=[pb.IntRange(start=start, end=end) for start, end in ranges],
        **fields,
    )


async def _subscribe(harness: Harness, **fields: Any) -> tuple[Client, BaseCommand]:
    client = harness.client()
    return client, await client.subscribe(subType=_KEY_SHARED, **fields)


async def _join(harness: Harness, permits: int = 0, **fields: Any) -> Client:
    client, answer = await _subscribe(harness, **fields)
    assert answer.type == BaseCommand.SUCCESS, answer
    if permits:
        client.flow(permits)
    return client


async def _got(client: Client) -> list[tuple[int, int]]:
    """(entry id, redelivery count) of everything that has arrived."""
    await settle()
    return [
        (command.message.message_id.entryId, command.message.redelivery_count)
        for command, _ in client.received()
        if command.type == BaseCommand.MESSAGE
    ]


async def _ids(client: Client) -> list[int]:
    return [entry_id for entry_id, _ in await _got(client)]


def _keyed(keys: Sequence[str], **fields: Any) -> Harness:
    harness = Harness(**fields)
    harness.log.store(*(entry(partition_key=key) for key in keys))
    return harness


def _dispatcher(harness: Harness) -> KeySharedDispatcher:
    dispatcher = harness.topic.subscriptions["s"].dispatcher
    assert isinstance(dispatcher, KeySharedDispatcher)
    dispatcher.check()
    return dispatcher


def _sticky_hash(key: str) -> int:
    return sticky_range_hash(key_hash_of(entry(partition_key=key)))


# The key and its hash (protocol sheet, appendix B)


@pytest.mark.parametrize(
    ("key", "sticky", "auto_split"),
    [
        ("", 1, 1),
        ("k1", 24618, 56817),
        ("key1", 293, 7357),
        ("key2", 14772, 44326),
        ("hello", 64071, 7892),
        ("my-message-key", 57744, 20778),
    ],
)
def test_hashes_are_those_of_pulsar(key: str, sticky: int, auto_split: int) -> None:
    key_hash = key_hash_of(entry(partition_key=key))
    assert sticky_range_hash(key_hash) == sticky
    assert auto_split_hash(key_hash) == auto_split


def test_what_the_key_of_an_entry_is() -> None:
    plain = key_hash_of(entry(partition_key="hello"))
    assert key_hash_of(entry(partition_key="other", ordering_key=b"hello")) == plain
    encoded = base64.b64encode(b"hello").decode()
    assert key_hash_of(entry(partition_key=encoded, partition_key_b64_encoded=True)) == plain
    assert key_hash_of(entry(partition_key=encoded)) != plain
    # Without a key: the producer's name and the sequence id, the same for all chunks of a message.
    assert key_hash_of(entry(sequence_id=3)) == key_hash_of(entry(partition_key="p-3"))
    no_key = key_hash_of(entry(partition_key="NONE_KEY"))
    assert key_hash_of(b"") == no_key
    assert key_hash_of(b"\x0e\x01 no entry at all") == no_key
    wrong = entry(partition_key="not base 64", partition_key_b64_encoded=True)
    assert key_hash_of(wrong) == key_hash_of(entry(partition_key="not base 64"))


def test_an_entry_without_checksum_has_the_same_key() -> None:
    metadata = MessageMetadata(
        producer_name="p", sequence_id=0, publish_time=1, partition_key="hello"
    ).SerializeToString()
    bare = len(metadata).to_bytes(4, "big") + metadata + b"body"
    assert key_hash_of(bare) == key_hash_of(entry(partition_key="hello"))


# Who gets what


@pytest.mark.parametrize("has_ring", [True, False])
async def test_every_entry_goes_to_one_consumer_and_a_key_to_one_only(has_ring: bool) -> None:
    keys = [f"key-{number % 50}" for number in range(1000)]
    harness = _keyed(keys, key_shared_consistent_hashing=has_ring)
    clients = [await _join(harness, consumer_name=f"c{number}") for number in range(4)]
    for client in clients:
        client.flow(1000)
    of_client = [await _ids(client) for client in clients]
    assert sorted(each for ids in of_client for each in ids) == list(range(1000))
    assert all(ids == sorted(ids) for ids in of_client)
    keys_of = [{keys[each] for each in ids} for ids in of_client]
    assert sum(map(len, keys_of)) == 50
    assert sum(bool(each) for each in keys_of) >= 3
    _dispatcher(harness)


async def test_without_a_ring_a_newcomer_gets_half_of_the_widest_range_as_in_pulsar() -> None:
    harness = _keyed([], key_shared_consistent_hashing=False)
    clients: list[Client] = []

    def ranges() -> list[list[tuple[int, int]]]:
        dispatcher = _dispatcher(harness)
        assert all(
            dispatcher.selector.select(point) is each
            for each in dispatcher.consumers
            for found in dispatcher.selector.ranges_of(each)
            for point in (found.start, found.end)
        )
        return [
            [(found.start, found.end) for found in dispatcher.selector.ranges_of(each)]
            for each in dispatcher.consumers
        ]

    for expected in (
        [[(0, 65535)]],
        [[(32769, 65535)], [(0, 32768)]],
        [[(32769, 65535)], [(16385, 32768)], [(0, 16384)]],
        [[(49153, 65535)], [(16385, 32768)], [(0, 16384)], [(32769, 49152)]],
    ):
        clients.append(await _join(harness))
        assert ranges() == expected
    # The hashes of one that leaves go to what is behind it, those of the last one to the former.
    clients[1].connection.lost()
    assert ranges() == [[(49153, 65535)], [(0, 16384)], [(16385, 49152)]]
    clients[0].connection.lost()
    assert ranges() == [[(0, 16384)], [(16385, 65535)]]
    clients[3].connection.lost()
    assert ranges() == [[(0, 65535)]]


async def test_a_consumer_without_credit_holds_up_its_own_keys_only() -> None:
    low, high = _keys_below_and_above()
    harness = _keyed([low, high, low, high, high])
    one = await _join(harness, keySharedMeta=_sticky((0, 32767)))
    two = await _join(harness, permits=10, keySharedMeta=_sticky((32768, 65535)))
    assert await _ids(one) == []
    assert await _ids(two) == [1, 3, 4]
    one.flow(1)
    assert await _ids(one) == [0]
    one.flow(5)
    assert await _ids(one) == [2]
    _dispatcher(harness)


def _keys_below_and_above() -> tuple[str, str]:
    """Keys with sticky hashes in the lower and in the upper half."""
    keys = [f"key-{number}" for number in range(50)]
    return (
        next(key for key in keys if _sticky_hash(key) < 32768),
        next(key for key in keys if _sticky_hash(key) >= 32768),
    )


async def test_a_new_consumer_gets_a_key_when_the_former_one_has_acknowledged_all_of_it() -> None:
    keys = [f"key-{number % 20}" for number in range(40)]
    harness = _keyed(keys)
    one = await _join(harness, permits=100, consumer_name="one")
    assert len(await _ids(one)) == 40
    two = await _join(harness, permits=100, consumer_name="two")
    dispatcher = _dispatcher(harness)
    moved = {key.hash for key in dispatcher.book.draining()}
    assert 0 < len(moved) < 20
    harness.log.store(*(entry(partition_key=key) for key in keys[:20]))
    harness.topic.subscriptions["s"].wake()
    assert await _ids(two) == []
    kept = await _ids(one)
    assert len(kept) == 20 - len(moved)

    def is_moved(entry_id: int) -> bool:
        return auto_split_hash(key_hash_of(harness.log.entries[7][entry_id])) in moved

    waiting = [each for each in range(40, 60) if is_moved(each)]
    first, *others = waiting
    of_first = [each for each in range(40) if keys[each] == keys[first - 40]]
    one.ack(*_at(of_first[0]))
    assert await _ids(two) == []  # one more of that key is out
    one.ack(*_at(of_first[1]))
    assert await _ids(two) == [first]
    one.ack(*_at(*range(40)))
    assert await _ids(two) == others
    assert await _ids(one) == []
    _dispatcher(harness)


async def test_out_of_order_delivery_does_not_wait_for_the_former_consumer() -> None:
    keys = [f"key-{number}" for number in range(20)]
    harness = _keyed(keys)
    meta = pb.KeySharedMeta(keySharedMode=pb.AUTO_SPLIT, allowOutOfOrderDelivery=True)
    one = await _join(harness, permits=100, consumer_name="one", keySharedMeta=meta)
    assert len(await _ids(one)) == 20
    two = await _join(harness, permits=100, consumer_name="two", keySharedMeta=meta)
    harness.log.store(*(entry(partition_key=key) for key in keys))
    harness.topic.subscriptions["s"].wake()
    assert len(await _ids(two)) > 0
    _dispatcher(harness)
    one.connection.lost()
    assert len(await _ids(two)) >= 20
    _dispatcher(harness)


async def test_what_a_lost_consumer_had_goes_to_others_in_the_order_of_each_key() -> None:
    keys = [f"key-{number % 7}" for number in range(70)]
    harness = _keyed(keys)
    one = await _join(harness, permits=1000, consumer_name="one")
    two = await _join(harness, permits=1000, consumer_name="two")
    had = await _ids(one)
    assert had
    one.connection.lost()
    assert await _got(two) == [(each, 0) for each in sorted(had)] or sorted(had) == []
    _dispatcher(harness)


async def test_new_entries_of_a_key_wait_behind_those_that_are_sent_again() -> None:
    harness = _keyed(["a", "b", "a"])
    client = await _join(harness, permits=3)
    assert await _ids(client) == [0, 1, 2]
    client.redeliver(*_at(0, 2))
    harness.log.store(entry(partition_key="a"), entry(partition_key="b"))
    client.flow(10)
    found = await _got(client)
    assert found.index((0, 1)) < found.index((2, 1)) < found.index((3, 0))
    assert sorted(found) == [(0, 1), (2, 1), (3, 0), (4, 0)]
    _dispatcher(harness)


async def test_redelivery_is_counted_and_forgotten_with_the_last_consumer() -> None:
    harness = _keyed(["a", "b"])
    client = await _join(harness, permits=10)
    await _ids(client)
    client.redeliver()
    assert await _got(client) == [(0, 1), (1, 1)]
    client.redeliver(*_at(1))
    assert await _got(client) == [(1, 2)]
    client.ack(*_at(0))
    client.connection.lost()
    assert await _got(await _join(harness, permits=10)) == [(1, 0)]


async def test_acknowledged_meanwhile_is_not_sent_again() -> None:
    harness = _keyed(["a", "a", "a"])
    one = await _join(harness, permits=3)
    await _ids(one)
    one.redeliver(*_at(0, 1))
    one.ack(*_at(0))
    one.flow(5)
    assert await _got(one) == [(1, 1)]
    _dispatcher(harness)


async def test_cumulative_acknowledgements_are_ignored() -> None:
    harness = _keyed(["a", "b"])
    client = await _join(harness, permits=10)
    await _ids(client)
    client.ack(*_at(1), ack_type=pb.CommandAck.Cumulative)
    assert harness.topic.subscriptions["s"].cursor.backlog_entries == 2


async def test_a_batch_goes_by_the_key_of_its_outer_metadata() -> None:
    low, high = _keys_below_and_above()
    harness = Harness()
    harness.log.store(
        entry(partition_key=low, num_messages_in_batch=5),
        entry(partition_key=high, num_messages_in_batch=3),
    )
    one = await _join(harness, permits=1, keySharedMeta=_sticky((0, 32767)))
    two = await _join(harness, permits=1, keySharedMeta=_sticky((32768, 65535)))
    assert await _ids(one) == [0]
    assert await _ids(two) == [1]
    permits = sorted(each.permits for each in harness.topic.subscriptions["s"].consumers)
    assert permits == [-4, -2]


async def test_indexes_of_a_batch_are_acknowledged_by_themselves() -> None:
    harness = Harness()
    harness.log.store(entry(partition_key="a", num_messages_in_batch=3))
    client = await _join(harness, permits=3)
    await _ids(client)
    client.ack_indexes(_at(0)[0], [0b110])
    assert harness.topic.subscriptions["s"].unacked_messages == 2
    _dispatcher(harness)
    client.ack_indexes(_at(0)[0], [0])
    assert harness.topic.subscriptions["s"].unacked_messages == 0
    assert not _dispatcher(harness).book.keys


async def test_what_waits_is_read_again_when_it_was_not_kept() -> None:
    low, high = _keys_below_and_above()
    harness = _keyed([low, high] * 20)
    one = await _join(harness, keySharedMeta=_sticky((0, 32767)))
    two = await _join(harness, permits=100, keySharedMeta=_sticky((32768, 65535)))
    assert len(await _ids(two)) == 20
    dispatcher = _dispatcher(harness)
    dispatcher.left._kept.clear()
    dispatcher.left._kept_bytes = 0
    harness.log.read_error = LogUnavailableError("bookies are away")
    one.flow(100)
    assert await _ids(one) == []
    assert dispatcher.why_idle() is Reason.UNREADABLE
    harness.log.read_error = None
    dispatcher.left._reader.stop()
    dispatcher.wake()
    assert await _ids(one) == list(range(0, 40, 2))


async def test_reading_ahead_stops_at_the_bound_and_goes_on() -> None:
    low, high = _keys_below_and_above()
    harness = _keyed([low] * 30 + [high], look_ahead_per_consumer_max=5)
    one = await _join(harness, keySharedMeta=_sticky((0, 32767)))
    two = await _join(harness, permits=10, keySharedMeta=_sticky((32768, 65535)))
    assert await _ids(two) == []
    dispatcher = _dispatcher(harness)
    assert dispatcher.waiting_entries == 10  # five for each consumer
    assert dispatcher.why_idle() is Reason.LOOK_AHEAD
    one.flow(20)
    assert await _ids(one) == list(range(20))
    assert await _ids(two) == []
    one.flow(20)
    assert await _ids(one) == list(range(20, 30))
    assert await _ids(two) == [30]


async def test_reading_ahead_is_bounded_for_the_subscription_too() -> None:
    harness = _keyed(["a"] * 30, look_ahead_per_subscription_max=7)
    for number in range(4):
        await _join(harness, consumer_name=f"c{number}", permits=0)
    dispatcher = _dispatcher(harness)
    idle = next(
        each
        for each in dispatcher.consumers
        if dispatcher.selector.select(auto_split_hash(key_hash_of(entry(partition_key="a"))))
        is not each
    )
    idle.permits = 1
    dispatcher.wake()
    await settle()
    dispatcher.wake()
    assert dispatcher.waiting_entries == 7


async def test_the_unacked_limit_of_a_consumer_holds_up_its_keys_only() -> None:
    low, high = _keys_below_and_above()
    harness = _keyed([low] * 8 + [high] * 4, unacked_per_consumer_max=4)
    one = await _join(harness, permits=100, keySharedMeta=_sticky((0, 32767)))
    two = await _join(harness, permits=100, keySharedMeta=_sticky((32768, 65535)))
    assert await _ids(one) == [0, 1, 2, 3]
    assert await _ids(two) == [8, 9, 10, 11]
    assert _dispatcher(harness).why_idle() is Reason.CONSUMERS_UNACKED
    one.ack(*_at(0, 1))
    assert await _ids(one) == [4, 5]


async def test_the_unacked_limit_of_the_subscription() -> None:
    harness = _keyed([f"key-{number}" for number in range(20)], unacked_per_subscription_max=6)
    client = await _join(harness, permits=100)
    assert await _ids(client) == list(range(6))
    assert _dispatcher(harness).why_idle() is Reason.SUBSCRIPTION_UNACKED
    client.ack(*_at(0, 1, 2))
    assert await _ids(client) == [6, 7, 8]


# Who may join


@pytest.mark.parametrize(
    "ranges",
    [
        [],
        [(5, 4)],
        [(-1, 10)],
        [(0, 65536)],
        [(0, 10), (10, 20)],
        [(30, 40), (0, 100)],
    ],
)
async def test_ranges_that_make_no_sense_are_refused(ranges: list[tuple[int, int]]) -> None:
    _, answer = await _subscribe(Harness(), keySharedMeta=_sticky(*ranges))
    assert answer.error.error == pb.ServerError.ConsumerAssignError


async def test_a_range_of_a_live_consumer_is_refused_and_free_again_when_it_leaves() -> None:
    harness = Harness(liveness_probe_timeout_ms=10_000)
    one = await _join(harness, keySharedMeta=_sticky((0, 100), (200, 300)))
    same = _sticky((300, 400))
    answering = harness.client()
    answering.send_subscribe(subType=_KEY_SHARED, keySharedMeta=same)
    assert (await one.next()).type == BaseCommand.PING
    one.send(BaseCommand.PONG, pong=pb.CommandPong())
    answer = await answering.next()
    assert answer.error.error == pb.ServerError.ConsumerAssignError
    await _join(harness, keySharedMeta=_sticky((101, 199)))
    one.connection.lost()
    await _join(harness, keySharedMeta=same)


async def test_a_range_of_a_dead_consumer_is_taken_over() -> None:
    harness = Harness(liveness_probe_timeout_ms=10)
    await _join(harness, keySharedMeta=_sticky((0, 65535)))
    await _join(harness, keySharedMeta=_sticky((0, 65535)))
    assert len(harness.topic.subscriptions["s"].consumers) == 1


@pytest.mark.usefixtures("few_probes")
async def test_ranges_of_a_dead_client_are_taken_over_however_many_it_has() -> None:
    harness = Harness(liveness_probe_timeout_ms=10)
    dead = harness.client()
    for at in range(80):
        meta = _sticky((at * 100, at * 100 + 99))
        answer = await dead.subscribe(at, subType=_KEY_SHARED, keySharedMeta=meta)
        assert answer.type == BaseCommand.SUCCESS
    await _join(harness, keySharedMeta=_sticky((0, 65535)))
    await settle()
    assert len(harness.topic.subscriptions["s"].consumers) == 1


@pytest.mark.parametrize(
    "meta",
    [
        _sticky((0, 65535)),
        pb.KeySharedMeta(keySharedMode=pb.AUTO_SPLIT, allowOutOfOrderDelivery=True),
    ],
)
async def test_all_consumers_have_the_same_mode(meta: pb.KeySharedMeta) -> None:
    harness = Harness()
    one = await _join(harness)
    _, answer = await _subscribe(harness, keySharedMeta=meta)
    assert answer.error.error == pb.ServerError.ConsumerBusy
    one.connection.lost()
    await _join(harness, keySharedMeta=meta)  # the mode may change with nobody connected


async def test_other_types_are_busy_meanwhile() -> None:
    harness = Harness()
    await _join(harness)
    answer = await harness.client().subscribe(subType=pb.CommandSubscribe.Shared)
    assert answer.error.error == pb.ServerError.ConsumerBusy


async def test_hashes_of_nobody_wait_and_say_so() -> None:
    low, high = _keys_below_and_above()
    harness = _keyed([low, high])
    one = await _join(harness, permits=10, keySharedMeta=_sticky((0, 32767)))
    assert await _ids(one) == [0]
    one.ack(*_at(0))
    assert _dispatcher(harness).why_idle() is Reason.NO_OWNER
    two = await _join(harness, permits=10, keySharedMeta=_sticky((32768, 65535)))
    assert await _ids(two) == [1]


async def test_an_exclusive_consumer_may_filter_by_hash() -> None:
    low, high = _keys_below_and_above()
    harness = _keyed([low, high, low])
    client = harness.client()
    answer = await client.subscribe(keySharedMeta=_sticky((32768, 65535)))
    assert answer.type == BaseCommand.SUCCESS
    client.flow(10)
    assert await _ids(client) == [1]
    _, refused = await _subscribe(Harness(), keySharedMeta=_sticky((9, 5)))
    assert refused.error.error == pb.ServerError.ConsumerAssignError


async def test_clients_that_know_no_checksum_get_none() -> None:
    harness = _keyed(["a"])
    client = harness.client(version=10)
    await client.subscribe(subType=_KEY_SHARED)
    client.flow(1)
    ((_, payload),) = await client.messages(1)
    assert payload == entry(partition_key="a")[6:]


async def test_a_seek_starts_everything_again() -> None:
    harness = _keyed(["a", "b", "c"])
    client = await _join(harness, permits=10)
    await _ids(client)
    await client.seek(message_id=pb.MessageIdData(ledgerId=7, entryId=1))
    await settle()
    again = await _join(harness, permits=10)
    assert await _ids(again) == [1, 2]
    _dispatcher(harness)


async def test_slower_consumers_have_a_little_time_before_more_is_left_than_is_kept() -> None:
    low, high = _keys_below_and_above()
    size = len(entry(partition_key=low))
    harness = _keyed(
        [low] * 10 + [high], look_ahead_bytes_max=3 * size, look_ahead_patience_ms=1_000_000
    )
    slow = await _join(harness, keySharedMeta=_sticky((0, 32767)))
    fast = await _join(harness, permits=10, keySharedMeta=_sticky((32768, 65535)))
    assert await _ids(fast) == [10]  # in one slice with the others
    dispatcher = _dispatcher(harness)
    assert dispatcher.waiting_entries == 10
    assert len(dispatcher.left._kept) == 3
    harness.log.store(entry(partition_key=high))
    dispatcher.wake()
    assert await _ids(fast) == []
    assert dispatcher.left._patience is not None
    dispatcher.left._lose_patience()
    assert await _ids(fast) == [11]
    slow.flow(20)
    assert await _ids(slow) == list(range(10))
    assert not dispatcher.left._is_impatient
    _dispatcher(harness)


async def test_with_nothing_kept_at_all_everything_is_sent() -> None:
    harness = _keyed(["a", "b", "c"], look_ahead_bytes_max=0, look_ahead_patience_ms=1_000_000)
    client = await _join(harness, permits=2)
    assert await _ids(client) == [0, 1]
    client.flow(5)
    assert await _ids(client) == [2]


# Entry buckets


def _buckets(count: int, **fields: Any) -> pb.KeySharedMeta:
    """What the consumers of a segment with so many entry buckets ask for."""
    width = 65536 // count
    ranges = [(start, start + width - 1) for start in range(0, 65536, width)]
    return _sticky(*ranges, entryBucketDispatch=True, **fields)


def _store(harness: Harness, *hashes: int) -> None:
    """Entries whose lowest hashes a producer has said; all have one key."""
    for each in hashes:
        harness.log.store(entry(partition_key="k", entry_hash_min=each, entry_hash_max=65535))
    harness.topic.subscriptions["s"].wake()


async def test_entry_buckets_are_divided_in_the_order_of_names() -> None:
    harness = Harness()
    clients = {
        name: await _join(harness, 10, keySharedMeta=_buckets(8), consumer_name=name)
        for name in ("c", "a", "b")
    }
    _store(harness, *(number * 8192 for number in range(8)))
    found = {name: await _ids(client) for name, client in clients.items()}
    assert found == {"a": [0, 1], "b": [2, 3, 4], "c": [5, 6, 7]}


async def test_entry_buckets_withhold_nothing_until_its_time() -> None:
    """A consumer that has the segment alone gets delayed messages at once and in order."""
    harness = Harness()
    client = await _join(harness, 10, keySharedMeta=_buckets(2), consumer_name="a")
    publisher = harness.client()
    await publisher.produce()
    late = 1 << 50
    for at, fields in enumerate(({"deliver_at_time": late}, {})):
        payload = entry(b"x", partition_key="k", sequence_id=at, **fields)
        publisher.send_bytes(send_frame(0, at, payload=payload))
    await settle()
    assert await _ids(client) == [0, 1]


async def test_an_entry_goes_by_its_lowest_hash_and_without_one_by_its_key() -> None:
    harness = Harness()
    low = await _join(harness, 10, keySharedMeta=_buckets(2), consumer_name="a")
    high = await _join(harness, 10, keySharedMeta=_buckets(2), consumer_name="b")
    _store(harness, 32767, 32768)
    lower, upper = _keys_below_and_above()
    harness.log.store(entry(partition_key=upper))
    harness.log.store(entry(partition_key=lower))
    harness.log.store(b"what nobody can read")
    harness.topic.subscriptions["s"].wake()
    assert 0 in (first := await _ids(low))
    assert 1 in (second := await _ids(high))
    assert (3 in first, 2 in second) == (True, True)
    assert len(first) + len(second) == 5


async def test_a_bucket_that_moves_waits_for_what_its_former_owner_has() -> None:
    harness = Harness()
    first = await _join(harness, 10, keySharedMeta=_buckets(2), consumer_name="b")
    _store(harness, 0, 40000)
    assert await _ids(first) == [0, 1]
    second = await _join(harness, 10, keySharedMeta=_buckets(2), consumer_name="a")
    _store(harness, 5, 40001)
    assert await _ids(second) == [], "entries of its bucket are with the other one"
    assert await _ids(first) == [3]
    first.ack(*_at(0))
    assert await _ids(second) == [2]


async def test_consumers_beyond_the_buckets_stand_by() -> None:
    harness = Harness()
    one = await _join(harness, 10, keySharedMeta=_buckets(1), consumer_name="a")
    two = await _join(harness, 10, keySharedMeta=_buckets(1), consumer_name="b")
    _store(harness, 1, 2)
    assert [await _ids(each) for each in (one, two)] == [[], [0, 1]]
    two.connection.lost()
    assert await _ids(one) == [0, 1]


async def test_consumers_of_other_buckets_are_refused_until_nobody_has_the_first_ones() -> None:
    harness = Harness(liveness_probe_timeout_ms=10_000)
    one = await _join(harness, keySharedMeta=_buckets(2))
    _, answer = await _subscribe(harness, keySharedMeta=_sticky((0, 32767), (32768, 65535)))
    assert answer.error.error == pb.ServerError.ConsumerBusy
    other = harness.client()
    other.send_subscribe(subType=_KEY_SHARED, keySharedMeta=_buckets(4))
    assert (await one.next()).type == BaseCommand.PING
    one.send(BaseCommand.PONG, pong=pb.CommandPong())
    answer = await other.next()
    assert answer.error.error == pb.ServerError.ConsumerAssignError
    assert "are not those of" in answer.error.message
    one.connection.lost()
    await _join(harness, keySharedMeta=_buckets(4))
