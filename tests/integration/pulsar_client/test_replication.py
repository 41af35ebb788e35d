"""Topics that are copied between two clusters, as official clients see them."""

import asyncio
import threading
from collections.abc import Iterator, Sequence
from functools import partial

import pulsar
import pytest
from pulsar.schema import AvroSchema, Record, String

from magnetar.sdk import Client
from tests.http_calls import admin, call, topic_path
from tests.integration.pulsar_client.support import connect, receive
from tests.integration.pulsar_client.two_clusters import (
    NAMESPACE,
    connect_both,
    open_topic,
    replication,
    settings_of,
)
from tests.standalone import Standalone
from tests.waiting import wait_until


@pytest.fixture(scope="module")
def clusters(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Standalone, Standalone]]:
    folder = tmp_path_factory.mktemp("replication")
    with (
        Standalone(folder / "east", settings=settings_of("east")) as east,
        Standalone(folder / "west", settings=settings_of("west")) as west,
    ):
        connect_both(east, west)
        yield east, west
        for each in (east, west):
            assert each.terminate() == 0
            each.assert_log_clean()


def bodies(consumer: pulsar.Consumer, count: int) -> Sequence[str]:
    return [receive(consumer).data().decode() for _ in range(count)]


def test_messages_go_both_ways_once_and_do_not_come_back(
    east: Standalone, west: Standalone, at_east: pulsar.Client, at_west: pulsar.Client
) -> None:
    topic = f"persistent://{NAMESPACE}/pair"
    readers = [
        client.subscribe(topic, "s", initial_position=pulsar.InitialPosition.Earliest)
        for client in (at_east, at_west)
    ]
    from_east = open_topic(at_east, east, topic, "west")
    from_west = open_topic(at_west, west, topic, "east")
    for n in range(100):
        from_east.send(f"east-{n}".encode(), properties={"n": str(n)}, partition_key=f"k{n % 3}")
        from_west.send(f"west-{n}".encode())
    from_east.send(b"last of east")
    from_west.send(b"last of west")
    for reader in readers:
        found = bodies(reader, 202)
        assert [each for each in found if each.startswith("east-")] == [
            f"east-{n}" for n in range(100)
        ]
        assert [each for each in found if each.startswith("west-")] == [
            f"west-{n}" for n in range(100)
        ]
        with pytest.raises(pulsar.Timeout):
            reader.receive(timeout_millis=300)
    wait_until(lambda: replication(east, topic)["west"]["replicationBacklog"] == 0)


def test_the_first_message_of_a_new_topic_is_copied(
    at_east: pulsar.Client, at_west: pulsar.Client
) -> None:
    for n in range(10):
        topic = f"persistent://{NAMESPACE}/new-{n}"
        at_east.create_producer(topic).send(b"first")
        reader = at_west.subscribe(topic, "s", initial_position=pulsar.InitialPosition.Earliest)
        assert receive(reader).data() == b"first"


def test_a_copy_has_what_the_message_had(
    east: Standalone, at_east: pulsar.Client, at_west: pulsar.Client
) -> None:
    topic = f"persistent://{NAMESPACE}/equal"
    reader = at_west.subscribe(topic, "s")
    open_topic(at_east, east, topic, "west").close()
    producer = at_east.create_producer(
        topic,
        producer_name="mine",
        batching_enabled=True,
        batching_max_publish_delay_ms=50,
        compression_type=pulsar.CompressionType.ZLib,
    )
    for n in range(20):
        producer.send_async(
            f"m-{n}".encode() * 100,
            None,
            properties={"n": str(n)},
            partition_key=f"k{n}",
            event_timestamp=1000 + n,
        )
    producer.flush()
    for n in range(20):
        message = receive(reader)
        assert message.data() == f"m-{n}".encode() * 100
        assert (message.properties(), message.partition_key()) == ({"n": str(n)}, f"k{n}")
        assert (message.event_timestamp(), message.producer_name()) == (1000 + n, "mine")
        assert message.message_id().batch_index() == n


def test_schemas_go_along(
    east: Standalone, west: Standalone, at_east: pulsar.Client, at_west: pulsar.Client
) -> None:
    class Flight(Record):  # type: ignore[misc]  # the client has no types
        number = String()

    topic = f"persistent://{NAMESPACE}/typed"
    reader = at_west.subscribe(topic, "s")
    open_topic(at_east, east, topic, "west").close()
    producer = at_east.create_producer(topic, schema=AvroSchema(Flight))
    producer.send(Flight(number="MH370"))
    receive(reader)
    typed = at_west.subscribe(
        topic,
        "typed",
        initial_position=pulsar.InitialPosition.Earliest,
        schema=AvroSchema(Flight),
    )
    assert receive(typed).value().number == "MH370"
    assert admin(west, "GET", f"/admin/v2/schemas/{NAMESPACE}/typed/schema")["type"] == "AVRO"


def test_messages_of_transactions_follow_when_these_are_committed(
    east: Standalone, at_east: pulsar.Client, at_west: pulsar.Client
) -> None:
    topic = f"persistent://{NAMESPACE}/transactional"
    reader = at_west.subscribe(topic, "s")
    open_topic(at_east, east, topic, "west").close()

    async def publish() -> None:
        async with Client(east.url) as client:
            producer = await client.producer(topic)
            aborted = await client.transaction().begin()
            await producer.send(b"aborted", transaction=aborted)
            await aborted.abort()
            async with client.transaction() as txn:
                await producer.send(b"in a transaction", transaction=txn)
                await producer.send(b"before the commit")

    asyncio.run(publish())
    assert bodies(reader, 2) == ["in a transaction", "before the commit"]
    with pytest.raises(pulsar.Timeout):
        reader.receive(timeout_millis=300)


def test_a_message_for_some_clusters_goes_to_them_alone(
    east: Standalone, at_east: pulsar.Client, at_west: pulsar.Client
) -> None:
    topic = f"persistent://{NAMESPACE}/chosen"
    reader = at_west.subscribe(topic, "s")
    producer = open_topic(at_east, east, topic, "west")
    producer.send(b"here", disable_replication=True)
    producer.send(b"elsewhere", replication_clusters=["north"])
    producer.send(b"there", replication_clusters=["west"])
    assert receive(reader).data() == b"there"


def test_statistics_and_metrics_tell_of_both_directions(
    east: Standalone, west: Standalone, at_east: pulsar.Client, at_west: pulsar.Client
) -> None:
    topic = f"persistent://{NAMESPACE}/watched"
    from_east = open_topic(at_east, east, topic, "west")
    from_west = open_topic(at_west, west, topic, "east")
    for _ in range(5):
        from_east.send(b"east")
    from_west.send(b"west")
    wait_until(lambda: replication(west, topic)["east"]["msgInCount"] == 5)
    wait_until(lambda: replication(east, topic)["west"]["msgInCount"] == 1)
    wait_until(lambda: replication(east, topic)["west"]["replicationBacklog"] == 0)
    shown = replication(east, topic)["west"]
    assert (shown["msgOutCount"], shown["connected"], shown["problem"]) == (5, True, "")
    assert shown["msgRateOut"] > 0  # type: ignore[operator]  # a number, as JSON
    assert shown["msgRateIn"] > 0  # type: ignore[operator]
    assert shown["replicationDelayInSeconds"] == 0
    for field in ("inboundConnection", "outboundConnection"):
        assert "127.0.0.1" in str(shown[field])
    for field in ("inboundConnectedSince", "outboundConnectedSince"):
        assert str(shown[field]).startswith("20")
    publishers = admin(east, "GET", f"{topic_path(topic)}/stats")["publishers"]
    assert [each["producerName"] for each in publishers] == [from_east.producer_name()]
    labels = f'{{cluster="east",namespace="{NAMESPACE}",topic="{topic}",remote_cluster="west"}}'
    lines = call(east, "GET", "/metrics").text.splitlines()
    assert f"pulsar_replication_backlog{labels} 0.0" in lines
    assert f"pulsar_replication_connected_count{labels} 1.0" in lines


def test_the_dispatch_rate_of_a_topic_bounds_its_copies_until_it_is_lifted(
    east: Standalone, at_east: pulsar.Client, at_west: pulsar.Client
) -> None:
    topic = f"persistent://{NAMESPACE}/throttled"
    reader = at_west.subscribe(topic, "s")
    producer = open_topic(at_east, east, topic, "west")
    rate = {"dispatchThrottlingRateInMsg": 5, "ratePeriodInSecond": 3600}
    policy = f"{topic_path(topic)}/replicatorDispatchRate"
    call(east, "POST", policy, rate, expect=204)
    wait_until(lambda: call(east, "GET", policy).json is not None)
    for n in range(10):
        producer.send(f"m-{n}".encode())
    assert bodies(reader, 5) == [f"m-{n}" for n in range(5)]
    with pytest.raises(pulsar.Timeout):
        reader.receive(timeout_millis=500)
    shown = replication(east, topic)["west"]
    assert (shown["replicationBacklog"], shown["problem"]) == (5, "")
    call(east, "DELETE", policy, expect=204)
    assert bodies(reader, 5) == [f"m-{n}" for n in range(5, 10)]


def test_what_is_not_copied_yet_is_dropped_by_operators_and_by_nothing_else(
    east: Standalone, at_east: pulsar.Client
) -> None:
    call(east, "PUT", "/admin/v2/clusters/gone", {"brokerServiceUrl": "pulsar://127.0.0.1:1"})
    tenant = {"allowedClusters": ["east", "west", "gone"], "adminRoles": []}
    call(east, "POST", "/admin/v2/tenants/public", tenant, expect=204)
    topic = f"persistent://{NAMESPACE}/dropped"
    producer = at_east.create_producer(topic)
    path = topic_path(topic)
    call(east, "POST", f"{path}/replication", ["east", "gone"], expect=204)
    wait_until(lambda: "gone" in replication(east, topic))

    def missing() -> object:
        return replication(east, topic)["gone"]["replicationBacklog"]

    for n in range(6):
        producer.send(f"m-{n}".encode())
    copies = f"{path}/subscription/pulsar.repl.gone"
    assert call(east, "GET", f"{copies}/position/2", expect=200).body == b"m-1"
    for method, action, body in (
        ("DELETE", "", None),
        ("DELETE", "?force=true", None),
        ("POST", "/resetcursor/0", None),
        ("POST", "/resetcursor", {"ledgerId": 0, "entryId": 0}),
    ):
        answer = call(east, method, f"{copies}{action}", body, expect=412)
        assert "no subscription" in answer.json["reason"]
    assert call(east, "PUT", copies, expect=None).status in (409, 412)
    with pytest.raises(pulsar.PulsarException):
        at_east.subscribe(topic, "pulsar.repl.gone")
    call(east, "POST", f"{path}/all_subscription/expireMessages/1", expect=204)
    call(east, "POST", f"/admin/v2/namespaces/{NAMESPACE}/clearBacklog", expect=204)
    assert missing() == 6
    note = call(east, "POST", f"{copies}/skip/2", expect=204).headers["x-magnetar-note"]
    assert note == "what was dropped is not copied to cluster gone any more"
    assert missing() == 4
    call(east, "POST", f"{copies}/expireMessages/3600", expect=204)
    assert missing() == 4
    call(east, "POST", f"{copies}/skip_all", expect=204)
    assert (missing(), replication(east, topic)["gone"]["msgExpiredCount"]) == (0, 6)
    producer.send(b"later")
    assert missing() == 1
    clear = f"/admin/v2/namespaces/{NAMESPACE}/clearBacklog/pulsar.repl.gone"
    call(east, "POST", clear, expect=204)
    assert missing() == 0
    call(east, "POST", f"{path}/replication", ["east"], expect=204)
    wait_until(lambda: replication(east, topic) == {})
    assert call(east, "POST", f"{copies}/skip_all").status == 404


def test_a_cluster_that_is_away_holds_producers_back_by_the_quota_until_what_is_missing_is_dropped(
    east: Standalone, at_east: pulsar.Client
) -> None:
    call(east, "PUT", "/admin/v2/clusters/gone", {"brokerServiceUrl": "pulsar://127.0.0.1:1"})
    tenant = {"allowedClusters": ["east", "west", "gone"], "adminRoles": []}
    call(east, "POST", "/admin/v2/tenants/public", tenant, expect=204)
    topic = f"persistent://{NAMESPACE}/held"
    path = topic_path(topic)
    producer = at_east.create_producer(topic)
    call(east, "POST", f"{path}/replication", ["east", "gone"], expect=204)
    wait_until(lambda: "gone" in replication(east, topic))
    quota = {"limitSize": 1000, "policy": "producer_exception"}
    call(east, "POST", f"{path}/backlogQuota", quota, expect=204)
    producer.send(b"x" * 2000)
    producer.close()
    with pytest.raises(pulsar.ProducerBlockedQuotaExceededException):
        at_east.create_producer(topic)
    call(east, "POST", f"{path}/subscription/pulsar.repl.gone/skip_all", expect=204)
    at_east.create_producer(topic).send(b"goes on")


def _has_come_on(producer: pulsar.Producer, at: int, is_done: threading.Event) -> bool:
    return bool(producer.last_sequence_id() > at + 20) or is_done.is_set()


def _first_seen(consumer: pulsar.Consumer, count: int) -> list[str]:
    """Receive until so many different bodies came; each where it came first."""
    found: dict[str, None] = {}
    while len(found) < count:
        message = receive(consumer)
        found.setdefault(message.data().decode())
        consumer.acknowledge(message)
    return list(found)


def test_copies_are_whole_after_kills_of_both_sides(
    east: Standalone, west: Standalone, at_east: pulsar.Client, at_west: pulsar.Client
) -> None:
    topic = f"persistent://{NAMESPACE}/killed"
    reader = at_west.subscribe(topic, "s")
    producer = open_topic(at_east, east, topic, "west")
    sent = [f"m-{n}" for n in range(400)]
    is_done = threading.Event()

    def publish() -> None:
        for each in sent:
            producer.send(each.encode())
        is_done.set()

    publisher = threading.Thread(target=publish)
    publisher.start()
    for server in (west, east, west, east):
        at = producer.last_sequence_id()
        wait_until(partial(_has_come_on, producer, at, is_done))
        server.kill()
        server.start()
    publisher.join()
    copied = _first_seen(reader, len(sent))
    # A producer without deduplication may store a message twice at its own cluster; copies do not
    # add to that, and the order is that of the cluster.
    at_home = at_east.subscribe(topic, "all", initial_position=pulsar.InitialPosition.Earliest)
    assert copied == _first_seen(at_home, len(sent))


def partitions(server: Standalone, topic: str) -> int:
    found = admin(server, "GET", f"{topic_path(topic)}/partitions?checkAllowAutoCreation=false")
    return int(found["partitions"])


@pytest.mark.parametrize("spread", ["by the command", "by the replicators"])
def test_a_partitioned_topic_appears_there_before_its_copies_and_grows_along(
    east: Standalone, west: Standalone, at_east: pulsar.Client, at_west: pulsar.Client, spread: str
) -> None:
    topic = f"persistent://{NAMESPACE}/parts-{spread.replace(' ', '-')}"
    is_local = "false" if spread == "by the command" else "true"
    path = f"{topic_path(topic)}/partitions"
    call(east, "PUT", f"{path}?createLocalTopicOnly={is_local}", 2, expect=204)
    if spread == "by the command":
        assert partitions(west, topic) == 2
    producer = at_east.create_producer(topic)
    wait_until(lambda: _is_connected(east, topic, 2))
    assert partitions(west, topic) == 2
    reader = at_west.subscribe(topic, "s")
    for n in range(10):
        producer.send(f"m-{n}".encode(), partition_key=f"k-{n}")
    assert sorted(bodies(reader, 10)) == sorted(f"m-{n}" for n in range(10))
    summed = admin(east, "GET", f"{topic_path(topic)}/partitioned-stats")["replication"]["west"]
    assert (summed["connected"], summed["msgOutCount"]) == (True, 10)
    producer.close()
    call(east, "POST", f"{path}?updateLocalTopicOnly={is_local}", 3, expect=204)
    if spread == "by the command":
        assert partitions(west, topic) == 3
    at_east.create_producer(topic)
    wait_until(lambda: _is_connected(east, topic, 3))
    assert partitions(west, topic) == 3


def _is_connected(server: Standalone, topic: str, count: int) -> bool:
    parts = [replication(server, f"{topic}-partition-{index}") for index in range(count)]
    return all(part.get("west", {}).get("connected") for part in parts)


def test_a_topic_with_more_partitions_there_is_copied_once_this_side_has_as_many(
    east: Standalone, west: Standalone, at_east: pulsar.Client, at_west: pulsar.Client
) -> None:
    topic = f"persistent://{NAMESPACE}/unequal"
    path = f"{topic_path(topic)}/partitions"
    call(west, "PUT", f"{path}?createLocalTopicOnly=true", 3, expect=204)
    note = call(east, "PUT", path, 2, expect=204).headers["x-magnetar-note"]
    assert "2 partitions here and 3 in west" in note
    producer = at_east.create_producer(topic)
    part = f"{topic}-partition-0"
    wait_until(lambda: "give it 3 here" in str(replication(east, part).get("west")))
    reader = at_west.subscribe(topic, "s")
    call(east, "POST", path, 3, expect=204)
    for n in range(10):
        producer.send(f"m-{n}".encode(), partition_key=f"k-{n}")
    assert sorted(bodies(reader, 10)) == sorted(f"m-{n}" for n in range(10))
    assert partitions(west, topic) == 3


def test_a_cluster_that_is_taken_out_keeps_what_it_has(
    east: Standalone, at_east: pulsar.Client, at_west: pulsar.Client
) -> None:
    topic = f"persistent://{NAMESPACE}/ended"
    reader = at_west.subscribe(topic, "s")
    producer = open_topic(at_east, east, topic, "west")
    producer.send(b"before")
    assert receive(reader).data() == b"before"
    call(east, "POST", f"{topic_path(topic)}/replication", ["east"], expect=204)
    wait_until(lambda: replication(east, topic) == {})
    producer.send(b"after")
    with pytest.raises(pulsar.Timeout):
        reader.receive(timeout_millis=500)
    again = at_west.subscribe(topic, "again", initial_position=pulsar.InitialPosition.Earliest)
    assert receive(again).data() == b"before"


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        ({"brokerServiceUrl": "pulsar://127.0.0.1:1"}, "127.0.0.1:1"),
        ({"serviceUrl": "http://127.0.0.1:1"}, "has no brokerServiceUrl"),
        ({"brokerServiceUrl": "gopher://127.0.0.1:1"}, "gopher"),
    ],
)
def test_why_nothing_is_copied_is_said_and_publishing_goes_on(
    east: Standalone, at_east: pulsar.Client, data: dict[str, str], reason: str
) -> None:
    name = f"bad{abs(hash(str(data))) % 1000}"
    call(east, "PUT", f"/admin/v2/clusters/{name}", data, expect=200)
    tenant = {"allowedClusters": ["east", "west", name], "adminRoles": []}
    call(east, "POST", "/admin/v2/tenants/public", tenant, expect=204)
    topic = f"persistent://{NAMESPACE}/to-{name}"
    producer = at_east.create_producer(topic)
    call(east, "POST", f"{topic_path(topic)}/replication", ["east", name], expect=204)
    wait_until(lambda: reason in str(replication(east, topic).get(name, {}).get("problem")))
    producer.send(b"goes on")


def test_copies_go_on_after_a_restart_though_nobody_uses_the_topic(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    folder = tmp_path_factory.mktemp("replication-at-rest")
    topic = f"persistent://{NAMESPACE}/forgotten"
    settings = {**settings_of("east"), "TOPICS_AT_REST_INTERVAL_S": "0.5"}
    with (
        Standalone(folder / "east", settings=settings) as east,
        Standalone(folder / "west", settings=settings_of("west")) as west,
    ):
        connect_both(east, west)
        client = connect(east.url)
        producer = open_topic(client, east, topic, "west")
        west.kill()
        for n in range(120):
            producer.send(b"%d" % n)
        client.close()
        east.kill()
        west.start()
        east.start()
        # A client of the other cluster would have the topic loaded here, by its copies back.
        wait_until(lambda: says(east, "topic_at_rest_loaded", topic))
        client = connect(west.url)
        reader = client.subscribe(topic, "s", initial_position=pulsar.InitialPosition.Earliest)
        assert bodies(reader, 120) == [str(n) for n in range(120)]
        client.close()


def says(server: Standalone, event: str, topic: str) -> bool:
    """Whether a log line of a server is of that event, and of the topic."""
    return any(event in line and topic in line for line in server.log_text().splitlines())
