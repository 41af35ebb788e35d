"""Compaction with the official client: who reads what is compacted gets the newest of each key."""

import time
from collections.abc import Callable, Iterator, Sequence
from urllib.parse import quote

import pulsar
import pytest

from tests.http_calls import Answer, call, topic_path
from tests.integration.pulsar_client.support import connect, publish_to, read_next, receive
from tests.standalone import Standalone
from tests.waiting import wait_until

_LEDGER_ENTRIES = 20
_BYTES_PER_S = 500_000
"""Slow enough for a kill in the middle of a compaction, and fast for the topics of these tests."""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Standalone]:
    """A server of its own, which is killed; its topics have small ledgers, trimmed at once."""
    settings = {
        "LEDGER_ENTRIES_MAX": str(_LEDGER_ENTRIES),
        "LEDGER_AGE_MIN_S": "0",
        "RETENTION_CHECK_INTERVAL_S": "0.2",
        "COMPACTION_CHECK_INTERVAL_S": "0.2",
        "COMPACTION_BYTES_PER_S": str(_BYTES_PER_S),
    }
    with Standalone(tmp_path_factory.mktemp("compacting") / "data", settings=settings) as started:
        yield started
        started.assert_log_clean()


@pytest.fixture
def client(server: Standalone) -> Iterator[pulsar.Client]:
    connection = connect(server.url, log_path=server.log_path.with_suffix(".client.log"))
    yield connection
    connection.close()


@pytest.fixture
def topic(request: pytest.FixtureRequest) -> str:
    return f"persistent://public/default/{quote(request.node.name, safe='')}"


class Admin:
    """The HTTP interface of one topic."""

    def __init__(self, server: Standalone, topic: str) -> None:
        self._server = server
        self._path = topic_path(topic)

    def call(self, method: str, action: str, body: object = None, *, expect: int) -> Answer:
        return call(self._server, method, self._path + action, body, expect=expect)

    def hold(self) -> None:
        """Create the topic and compact it while it is empty.

        A topic without a subscription is trimmed while it is published to. From its first
        compaction on, it keeps what was not compacted.
        """
        self.call("PUT", "", expect=204)
        self.compact()

    def compact(self) -> None:
        """Compact, and wait for the end."""
        self.call("PUT", "/compaction", expect=204)
        wait_until(lambda: self.status() != "RUNNING", "the end of the compaction")
        assert self.status() == "SUCCESS"

    def status(self) -> str:
        return str(self.call("GET", "/compaction", expect=200).json["status"])

    def stats(self) -> dict[str, object]:
        return dict(self.call("GET", "/stats", expect=200).json)

    def unload(self) -> None:
        self.call("PUT", "/unload", expect=204)


Message = tuple[str | None, bytes]

_SEVEN = {"batching_max_messages": 7, "batching_max_publish_delay_ms": 10_000}
"""Sizes of batches."""


def newest(messages: Sequence[Message]) -> list[Message]:
    """What is left: the newest of each key, in their order, and no tombstones."""
    last = {key: at for at, (key, _) in enumerate(messages)}
    return [
        (key, payload)
        for at, (key, payload) in enumerate(messages)
        if key is not None and payload and last[key] == at
    ]


def history(rounds: int, keys: int = 10) -> list[Message]:
    """Every key several times, one that is removed, one that is removed and comes back."""
    messages: list[Message] = []
    for at in range(rounds):
        messages += [(f"key {key}", b"%d of round %d" % (key, at)) for key in range(keys)]
        messages += [(None, b"no key"), ("removed", b"there"), ("back", b"%d" % at)]
        messages += [("removed", b""), ("back", b"") if at < rounds - 1 else ("late", b"late")]
    return messages


def read_all(client: pulsar.Client, topic: str, *, compacted: bool) -> list[Message]:
    reader = client.create_reader(topic, pulsar.MessageId.earliest, is_read_compacted=compacted)
    found: list[Message] = []
    while reader.has_message_available():
        message = read_next(reader)
        found.append((message.partition_key() or None, message.data()))
    reader.close()
    return found


def _unload(_server: Standalone, admin: Admin) -> None:
    admin.unload()


def _restart(server: Standalone, _admin: Admin) -> None:
    assert server.terminate() == 0
    server.start()


def _kill(server: Standalone, _admin: Admin) -> None:
    server.kill()
    server.start()


Event = Callable[[Standalone, Admin], None]

_ALL = pulsar.CompressionType
_COMPRESSIONS = [_ALL.NONE, _ALL.LZ4, _ALL.ZLib, _ALL.ZSTD, _ALL.SNAPPY]


@pytest.mark.parametrize("compression", _COMPRESSIONS, ids=lambda each: each.name)
@pytest.mark.parametrize("batched", [False, True])
def test_readers_get_the_newest_of_each_key_and_what_came_later(
    server: Standalone,
    client: pulsar.Client,
    topic: str,
    batched: bool,
    compression: pulsar.CompressionType,
) -> None:
    messages = history(rounds=6)
    Admin(server, topic).hold()
    publish_to(
        client, topic, messages, batching_enabled=batched, compression_type=compression, **_SEVEN
    )
    Admin(server, topic).compact()
    assert read_all(client, topic, compacted=True) == newest(messages)
    # The client does not get through empty payloads that it has compressed with zlib.
    later = [message for message in history(rounds=2) if message[1]]
    publish_to(
        client, topic, later, batching_enabled=batched, compression_type=compression, **_SEVEN
    )
    assert read_all(client, topic, compacted=True) == newest(messages) + later
    Admin(server, topic).compact()
    assert read_all(client, topic, compacted=True) == newest(messages + later)


@pytest.mark.parametrize(
    ("event", "batched"), [(_unload, False), (_kill, False), (_unload, True), (_restart, True)]
)
def test_a_subscription_goes_on_where_it_was(
    server: Standalone, topic: str, batched: bool, event: Event
) -> None:
    """The ledgers with the old messages are trimmed; acknowledged one by one, half before, half
    after the event; behind the horizon everything comes. What comes again is the rest of a batch,
    or what was acknowledged in the last second before a kill."""
    admin = Admin(server, topic)
    messages = history(rounds=6)
    expected = newest(messages)
    client = connect(server.url)
    admin.hold()
    publish_to(client, topic, messages, batching_enabled=batched, **_SEVEN)
    admin.compact()
    consumer = _subscribe(client, topic)
    half = len(expected) // 2
    assert _take(consumer, half) == expected[:half]
    client.close()
    event(server, admin)
    client = connect(server.url)
    later = [("key 1", b"later"), (None, b"later, without a key")]
    publish_to(client, topic, later, batching_enabled=batched, **_SEVEN)
    consumer = _subscribe(client, topic)
    found = _take_through(consumer, later[-1])
    again = len(found) - (len(expected) + len(later) - half)
    assert 0 <= again <= half
    assert again == 0 or batched or event is _kill
    assert found == expected[half - again :] + later
    consumer.close()
    wait_until(lambda: _backlog(admin) == 0, "an empty backlog")
    client.close()


def _subscribe(client: pulsar.Client, topic: str) -> pulsar.Consumer:
    return client.subscribe(
        topic,
        "sub",
        initial_position=pulsar.InitialPosition.Earliest,
        is_read_compacted=True,
    )


def _take(consumer: pulsar.Consumer, count: int) -> list[Message]:
    """Messages, each acknowledged; without what this client shows of those that are compacted out
    of a batch, with Pulsar's broker as with this one."""
    found: list[Message] = []
    while len(found) < count:
        message = receive(consumer)
        if message.partition_key() or message.data():
            found.append((message.partition_key() or None, message.data()))
        consumer.acknowledge(message)
    return found


def _take_through(consumer: pulsar.Consumer, last: Message) -> list[Message]:
    found = _take(consumer, 1)
    while found[-1] != last:
        found += _take(consumer, 1)
    return found


def _backlog(admin: Admin) -> int:
    return int(admin.stats()["subscriptions"]["sub"]["msgBacklog"])  # type: ignore[index]


def test_a_kill_in_the_middle_leaves_one_of_two_valid_states(
    server: Standalone, topic: str
) -> None:
    admin = Admin(server, topic)
    messages = history(rounds=3)
    client = connect(server.url)
    admin.hold()
    publish_to(client, topic, messages)
    admin.compact()
    later: list[Message] = [(f"key {at % 5}", b"%d" % at + bytes(2000)) for at in range(300)]
    publish_to(client, topic, later)
    client.close()
    admin.call("PUT", "/compaction", expect=204)
    admin.call("PUT", "/compaction", expect=409)
    assert admin.status() == "RUNNING"
    time.sleep(1.6)  # a pass takes 1.2 s: somewhere in the second one, whatever is written by then
    server.kill()
    server.start()
    assert admin.status() == "NOT_RUN"
    client = connect(server.url)
    found = read_all(client, topic, compacted=True)
    assert found in (newest(messages) + later, newest(messages + later))
    admin.compact()
    assert read_all(client, topic, compacted=True) == newest(messages + later)
    client.close()


def test_a_topic_is_compacted_when_its_threshold_is_reached(
    server: Standalone, client: pulsar.Client, topic: str
) -> None:
    admin = Admin(server, topic)
    messages = history(rounds=20)

    def compaction() -> dict[str, int]:
        return admin.stats()["compaction"]  # type: ignore[return-value]

    admin.hold()
    publish_to(client, topic, messages)
    # Not before: a compaction in between leaves less than the threshold for the next one.
    admin.call("POST", "/compactionThreshold", 1000, expect=204)
    wait_until(
        lambda: compaction()["lastCompactionRemovedEventCount"] > 0, "a compaction by itself"
    )
    assert compaction()["lastCompactionSucceedTimestamp"] > 0
    assert compaction()["lastCompactionFailedTimestamp"] == 0
    assert read_all(client, topic, compacted=True) == newest(messages)


def test_ids_stay_and_a_seek_finds_them(
    server: Standalone, client: pulsar.Client, topic: str
) -> None:
    messages = history(rounds=6)
    expected = newest(messages)
    Admin(server, topic).hold()
    producer = client.create_producer(topic, batching_enabled=False)
    ids = [producer.send(payload, partition_key=key) for key, payload in messages]
    producer.close()
    Admin(server, topic).compact()
    reader = client.create_reader(topic, pulsar.MessageId.earliest, is_read_compacted=True)
    found = [read_next(reader) for _ in expected]
    assert [(each.partition_key(), each.data()) for each in found] == expected
    places = [str(ids[messages.index(each)]) for each in expected]
    assert [str(each.message_id()) for each in found] == places
    consumer = _subscribe(client, topic)
    assert str(consumer.get_last_message_id()) == places[-1]
    consumer.close()
    assert not reader.has_message_available()
    reader.seek(found[4].message_id())
    # The client leaves the sought message of a reader itself out.
    assert [read_next(reader).data() for _ in expected[5:]] == [each[1] for each in expected[5:]]
    reader.seek(pulsar.MessageId.earliest)
    assert [read_next(reader).data() for _ in expected] == [each[1] for each in expected]
    reader.close()
    plain = client.create_reader(topic, pulsar.MessageId.earliest)
    assert plain.has_message_available()
    plain.close()


@pytest.mark.parametrize("batched", [False, True])
def test_partitions_are_compacted_each_by_itself(
    server: Standalone, client: pulsar.Client, topic: str, batched: bool
) -> None:
    admin = Admin(server, topic)
    admin.call("PUT", "/partitions", 2, expect=204)
    for index in range(2):
        Admin(server, f"{topic}-partition-{index}").compact()  # empty: see `hold`
    messages = history(rounds=4)
    publish_to(client, topic, messages, batching_enabled=batched, **_SEVEN)
    admin.call("PUT", "/compaction", expect=204)
    found: list[Message] = []
    for index in range(2):
        partition = f"{topic}-partition-{index}"
        of_partition = Admin(server, partition)
        wait_until(lambda of=of_partition: of.status() != "RUNNING", "a compacted partition")  # type: ignore[misc]
        assert of_partition.status() == "SUCCESS"
        found += read_all(client, partition, compacted=True)
    assert sorted(found, key=str) == sorted(newest(messages), key=str)


def test_a_failover_consumer_reads_what_is_compacted_and_shared_ones_may_not(
    server: Standalone, client: pulsar.Client, topic: str
) -> None:
    messages = history(rounds=4)
    Admin(server, topic).hold()
    publish_to(client, topic, messages)
    Admin(server, topic).compact()
    consumer = client.subscribe(
        topic,
        "sub",
        consumer_type=pulsar.ConsumerType.Failover,
        initial_position=pulsar.InitialPosition.Earliest,
        is_read_compacted=True,
    )
    assert _take(consumer, len(newest(messages))) == newest(messages)
    consumer.close()
    with pytest.raises(pulsar.PulsarException):
        client.subscribe(
            topic, "other", consumer_type=pulsar.ConsumerType.Shared, is_read_compacted=True
        )


def test_a_deleted_topic_takes_its_compacted_ledger_along(
    server: Standalone, client: pulsar.Client, topic: str
) -> None:
    admin = Admin(server, topic)
    admin.hold()
    publish_to(client, topic, history(rounds=2))
    admin.compact()
    admin.call("DELETE", "?force=true", expect=204)
    admin.call("GET", "/compaction", expect=404)
    publish_to(client, topic, [("key", b"anew")])
    assert read_all(client, topic, compacted=True) == [("key", b"anew")]
