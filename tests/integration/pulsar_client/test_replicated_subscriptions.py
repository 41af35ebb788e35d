"""Replicated subscriptions between two clusters: consumers move there and back."""

import threading
import time
from collections.abc import Iterator
from functools import partial
from typing import Any

import pulsar
import pytest

from tests.http_calls import admin, call, topic_path
from tests.integration.pulsar_client.support import receive
from tests.standalone import Standalone
from tests.waiting import wait_until

NAMESPACE = "public/both"
MISSING = 1 << 30
INTERVAL_MS = 100
REPEATED_S = 2.0
"""What was acknowledged longer ago than this is not delivered again: twenty intervals, on a machine
that does other things as well."""


def _settings(cluster: str) -> dict[str, str]:
    return {
        "CLUSTER_NAME": cluster,
        "REPLICATION_RETRY_S_MAX": "0.5",
        "REPLICATION_CHECK_INTERVAL_S": "0.5",
        "REPLICATED_SUBSCRIPTIONS_SNAPSHOT_INTERVAL_MS": str(INTERVAL_MS),
        "LEDGER_ENTRIES_MAX": "50",
        "LEDGER_AGE_MIN_S": "0",
    }


@pytest.fixture(scope="module")
def clusters(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Standalone, Standalone]]:
    folder = tmp_path_factory.mktemp("subscriptions")
    with (
        Standalone(folder / "east", settings=_settings("east")) as east,
        Standalone(folder / "west", settings=_settings("west")) as west,
    ):
        for here, other, name in ((east, west, "west"), (west, east, "east")):
            data = {"brokerServiceUrl": other.url, "serviceUrl": other.http_url}
            call(here, "PUT", f"/admin/v2/clusters/{name}", data, expect=200)
            tenant = {"allowedClusters": ["east", "west"], "adminRoles": []}
            call(here, "POST", "/admin/v2/tenants/public", tenant, expect=204)
            body = {"replication_clusters": ["east", "west"]}
            call(here, "PUT", f"/admin/v2/namespaces/{NAMESPACE}", body, expect=204)
        yield east, west
        for each in (east, west):
            assert each.terminate() == 0
            each.assert_log_clean()


def stats(server: Standalone, topic: str) -> dict[str, Any]:
    found: dict[str, Any] = admin(server, "GET", f"{topic_path(topic)}/stats")
    return found


def is_connected(server: Standalone, topic: str, remote: str) -> bool:
    return bool(stats(server, topic)["replication"].get(remote, {}).get("connected"))


def open_messages(server: Standalone, topic: str) -> int:
    """Messages that the subscription has not acknowledged, markers left out; `MISSING`: there is no
    such subscription."""
    if "s" not in stats(server, topic)["subscriptions"]:
        return MISSING
    found = admin(server, "POST", f"{topic_path(topic)}/subscription/s/analyzeBacklog")
    return int(found["messages"])


def begin(
    topic: str,
    east: Standalone,
    west: Standalone,
    at_east: pulsar.Client,
    at_west: pulsar.Client,
) -> tuple[pulsar.Producer, pulsar.Producer]:
    """Producers of a topic that is copied both ways."""
    from_east = at_east.create_producer(topic, send_timeout_millis=60_000)
    from_west = at_west.create_producer(topic, send_timeout_millis=60_000)
    wait_until(lambda: is_connected(east, topic, "west") and is_connected(west, topic, "east"))
    return from_east, from_west


def subscribe(client: pulsar.Client, topic: str, **options: Any) -> pulsar.Consumer:
    return client.subscribe(
        topic,
        "s",
        initial_position=pulsar.InitialPosition.Earliest,
        replicate_subscription_state_enabled=True,
        **options,
    )


def take(consumer: pulsar.Consumer, count: int) -> list[str]:
    """Receive and acknowledge."""
    found = []
    for _ in range(count):
        message = receive(consumer)
        consumer.acknowledge(message)
        found.append(message.data().decode())
    return found


def take_through(consumer: pulsar.Consumer, last: str) -> list[str]:
    """Receive and acknowledge until a message has come."""
    found: list[str] = []
    while last not in found:
        found += take(consumer, 1)
    return found


def nothing_comes(consumer: pulsar.Consumer) -> bool:
    with pytest.raises(pulsar.Timeout):
        consumer.receive(timeout_millis=500)
    return True


def updates_sent(server: Standalone) -> float:
    name = "magnetar_broker_subscription_updates_sent_total "
    lines = call(server, "GET", "/metrics", expect=200).text.splitlines()
    return sum(float(line.removeprefix(name)) for line in lines if line.startswith(name))


def test_a_consumer_goes_on_in_the_other_cluster_and_back(
    east: Standalone, west: Standalone, at_east: pulsar.Client, at_west: pulsar.Client
) -> None:
    topic = f"persistent://{NAMESPACE}/moves"
    from_east, from_west = begin(topic, east, west, at_east, at_west)
    consumer = subscribe(at_east, topic)
    for n in range(50):
        from_east.send(b"east-%d" % n)
        from_west.send(b"west-%d" % n)
    done = take(consumer, 100)
    # Told while there is nothing else: of what follows, a part is acknowledged, and whether a
    # snapshot lies within that part is up to the clock.
    wait_until(lambda: not open_messages(west, topic), "west is told")
    for n in range(50, 100):
        from_east.send(b"east-%d" % n)
        from_west.send(b"west-%d" % n)
    wait_until(lambda: stats(east, topic)["msgInCounter"] >= 200)
    done += take(consumer, 20)
    consumer.close()
    assert open_messages(west, topic) <= 100
    assert stats(west, topic)["subscriptions"]["s"]["isReplicated"]
    consumer = subscribe(at_west, topic)
    rest = take(consumer, 1)
    expected = {f"{name}-{n}" for name in ("east", "west") for n in range(100)}
    while set(done) | set(rest) != expected:
        rest += take(consumer, 1)
    assert nothing_comes(consumer)
    consumer.close()
    # And back: what was acknowledged at west is told without a message in between.
    wait_until(lambda: not open_messages(east, topic), "east is told")
    from_east.send(b"last")
    consumer = subscribe(at_east, topic)
    assert take_through(consumer, "last")[-1] == "last"
    consumer.close()
    wait_until(lambda: not open_messages(west, topic), "west is told")
    consumer = subscribe(at_west, topic)
    assert nothing_comes(consumer), "everything was told before"


def test_after_the_death_of_a_cluster_nothing_is_lost_and_little_comes_again(
    east: Standalone, west: Standalone, at_east: pulsar.Client, at_west: pulsar.Client
) -> None:
    topic = f"persistent://{NAMESPACE}/dies"
    producer, _ = begin(topic, east, west, at_east, at_west)
    consumer = subscribe(at_east, topic)
    acked_s: dict[str, float] = {}
    sent: list[str] = []
    is_over = threading.Event()

    def publish() -> None:
        while not is_over.is_set():
            producer.send(b"m-%d" % len(sent))
            sent.append(f"m-{len(sent)}")

    publisher = threading.Thread(target=publish)
    publisher.start()
    begun_s = time.monotonic()
    while time.monotonic() < begun_s + 3 * REPEATED_S:
        message = receive(consumer)
        consumer.acknowledge(message)
        acked_s[message.data().decode()] = time.monotonic()
    is_over.set()
    publisher.join()
    # One that only west can acknowledge: the last acknowledgements at east may not be stored, and
    # nobody else would wait for their messages at west.
    producer.send(b"m-%d" % len(sent))
    sent.append(f"m-{len(sent)}")
    died_s = time.monotonic()
    east.kill()
    moved = subscribe(at_west, topic)
    found: list[str] = []
    while True:
        try:
            message = moved.receive(timeout_millis=1_000)
        except pulsar.Timeout:
            break
        moved.acknowledge(message)
        found.append(message.data().decode())
    too_old = [each for each in found if acked_s.get(each, died_s) < died_s - REPEATED_S]
    assert not too_old, f"{len(too_old)} of {len(found)}"
    east.start()
    # What east had not copied comes when it is back.
    while not set(sent) <= set(acked_s) | set(found):
        found += take(moved, 1)
    moved.close()
    consumer.close()
    wait_until(lambda: not open_messages(east, topic), "east is told what west has done")
    back = subscribe(at_east, topic)
    producer.send(b"last")
    assert take(back, 1) == ["last"]


def test_through_kills_of_both_sides_nothing_is_lost(
    east: Standalone, west: Standalone, at_east: pulsar.Client, at_west: pulsar.Client
) -> None:
    topic = f"persistent://{NAMESPACE}/killed"
    producer, _ = begin(topic, east, west, at_east, at_west)
    consumer = subscribe(at_east, topic)
    acked: set[str] = set()
    for at, server in enumerate((west, east, west, None)):
        for n in range(50):
            producer.send(b"%d-%d" % (at, n))
        # Some stay open, and what was acknowledged last may not have been stored.
        acked |= set(take(consumer, 40))
        if server is not None:
            server.kill()
            server.start()
    expected = {f"{at}-{n}" for at in range(4) for n in range(50)}
    while not expected <= acked:
        acked |= set(take(consumer, 1))
    wait_until(lambda: not open_messages(west, topic), "west is told")
    for n in range(20):
        producer.send(b"more-%d" % n)
    take(consumer, 10)
    consumer.close()
    moved = subscribe(at_west, topic)
    found = take_through(moved, "more-19")
    assert set(found) >= {f"more-{n}" for n in range(10, 20)}
    assert not set(found) & expected, "all of it was told"


def test_acknowledgements_behind_a_hole_wait(
    east: Standalone, west: Standalone, at_east: pulsar.Client, at_west: pulsar.Client
) -> None:
    topic = f"persistent://{NAMESPACE}/hole"
    producer, _ = begin(topic, east, west, at_east, at_west)
    consumer = subscribe(at_east, topic, consumer_type=pulsar.ConsumerType.Shared)
    for n in range(20):
        producer.send(b"m-%d" % n)
    take(consumer, 20)
    wait_until(lambda: not open_messages(west, topic), "west is told")
    for n in range(20, 40):
        producer.send(b"m-%d" % n)
    hole = receive(consumer)
    assert take(consumer, 19) == [f"m-{n}" for n in range(21, 40)]
    wait_until(lambda: stats(west, topic)["msgInCounter"] == 40)
    moved = subscribe(at_west, topic, consumer_type=pulsar.ConsumerType.Shared)
    assert take(moved, 20) == [f"m-{n}" for n in range(20, 40)]
    assert nothing_comes(moved)
    consumer.acknowledge(hole)


def test_what_is_kept_at_home_is_not_acknowledged_by_another_cluster(
    east: Standalone, west: Standalone, at_east: pulsar.Client, at_west: pulsar.Client
) -> None:
    topic = f"persistent://{NAMESPACE}/home"
    from_east, from_west = begin(topic, east, west, at_east, at_west)
    consumer = subscribe(at_east, topic)
    from_east.send(b"before")
    take(consumer, 1)
    wait_until(lambda: not open_messages(west, topic), "west is told of the first one")
    from_west.send(b"at home", disable_replication=True)
    from_west.send(b"after")
    sent = updates_sent(east)
    assert take(consumer, 1) == ["after"]
    wait_until(lambda: updates_sent(east) > sent, "west is told of the last one")
    wait_until(lambda: stats(east, topic)["replication"]["west"]["replicationBacklog"] == 0)
    moved = subscribe(at_west, topic)
    assert take(moved, 2) == ["at home", "after"]


def test_markers_are_for_nobody(
    east: Standalone, west: Standalone, at_east: pulsar.Client, at_west: pulsar.Client
) -> None:
    topic = f"persistent://{NAMESPACE}/markers"
    producer, _ = begin(topic, east, west, at_east, at_west)
    consumer = subscribe(at_east, topic)
    producer.send(b"a")
    assert take(consumer, 1) == ["a"]
    wait_until(lambda: not open_messages(west, topic), "an update went through both logs")
    for client in (at_east, at_west):
        reader = client.create_reader(topic, pulsar.MessageId.earliest)
        assert reader.read_next(timeout_millis=10_000).data() == b"a"
        assert not reader.has_message_available()
        reader.close()
    other = at_west.subscribe(topic, "other", initial_position=pulsar.InitialPosition.Earliest)
    assert receive(other).data() == b"a"
    assert nothing_comes(other)
    entries = stats(east, topic)["msgInCounter"]
    assert entries == 1, "markers are no messages"


def test_the_status_is_set_and_read_over_http(
    east: Standalone, west: Standalone, at_east: pulsar.Client, at_west: pulsar.Client
) -> None:
    topic = f"persistent://{NAMESPACE}/status"
    begin(topic, east, west, at_east, at_west)
    path = f"{topic_path(topic)}/subscription/s"
    at_east.subscribe(topic, "s").close()
    status = partial(admin, east, "GET", f"{path}/replicatedSubscriptionStatus")
    assert status() == {topic: False}
    for value in (True, False, True):
        call(east, "POST", f"{path}/replicatedSubscriptionStatus", value, expect=204)
        assert status() == {topic: value}
        assert stats(east, topic)["subscriptions"]["s"]["replicated"] is value
    call(east, "PUT", f"{topic_path(topic)}/unload", None, expect=204)
    assert status() == {topic: True}, "it is kept with the subscription"
    call(east, "PUT", f"{topic_path(topic)}/subscription/made?replicated=true", None, expect=204)
    assert stats(east, topic)["subscriptions"]["made"]["isReplicated"]
