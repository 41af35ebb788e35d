"""What another cluster does not take is said in one line, and other topics go on."""

from collections.abc import Iterator
from datetime import datetime

import pulsar
import pytest
from pulsar.schema import AvroSchema, Integer, Record, String

from tests.http_calls import admin, call, topic_path
from tests.integration.pulsar_client.support import receive
from tests.integration.pulsar_client.two_clusters import (
    NAMESPACE,
    connect_both,
    open_topic,
    replication,
    settings_of,
)
from tests.standalone import Standalone
from tests.waiting import wait_until

_AN_HOUR_LATE = """
import time
_s, _ns = time.time, time.time_ns
time.time = lambda: _s() - 3600
time.time_ns = lambda: _ns() - 3600 * 10**9
"""


class Flight(Record):  # type: ignore[misc]  # pulsar has no types
    carrier = String(required=True)


class Other(Record):  # type: ignore[misc]
    carrier = Integer(required=True)


@pytest.fixture(scope="module")
def clusters(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Standalone, Standalone]]:
    """West takes small messages only, and its clock is an hour late."""
    folder = tmp_path_factory.mktemp("refusals")
    late = folder / "late"
    late.mkdir()
    (late / "sitecustomize.py").write_text(_AN_HOUR_LATE)
    small = {**settings_of("west"), "MESSAGE_BYTES_MAX": "2000"}
    shifted = {"PYTHONPATH": str(late)}
    with (
        Standalone(folder / "east", settings=settings_of("east")) as east,
        # By `env`, in an interpreter of its own: a fork would have the right time.
        Standalone(
            folder / "west", settings=small, environment=shifted, command_prefix=["env"]
        ) as west,
    ):
        connect_both(east, west)
        yield east, west
        for each in (east, west):
            assert each.terminate() == 0
            each.assert_log_clean()


def problem(server: Standalone, topic: str, other: str) -> str:
    return str(replication(server, topic).get(other, {}).get("problem"))


def goes_on(
    at_east: pulsar.Client, at_west: pulsar.Client, east: Standalone, name: str
) -> pulsar.Message:
    """Another topic of the namespace is copied."""
    topic = f"persistent://{NAMESPACE}/{name}"
    open_topic(at_east, east, topic, "west").send(b"goes on")
    there = at_west.subscribe(topic, "s", initial_position=pulsar.InitialPosition.Earliest)
    message = receive(there)
    assert message.data() == b"goes on"
    return message


def test_a_cluster_that_nobody_told_of_is_refused_when_it_is_named(east: Standalone) -> None:
    path = f"/admin/v2/namespaces/{NAMESPACE}/replication"
    answer = call(east, "POST", path, ["east", "nowhere"], expect=412)
    assert "nowhere" in answer.json["reason"]


def test_a_message_above_the_limit_there_holds_its_topic_and_no_other(
    at_east: pulsar.Client, at_west: pulsar.Client, east: Standalone
) -> None:
    topic = f"persistent://{NAMESPACE}/large"
    producer = open_topic(at_east, east, topic, "west")
    producer.send(bytes(3_000))
    wait_until(lambda: problem(east, topic, "west") not in ("", "None"), "the reason is said")
    assert "3" in problem(east, topic, "west")
    assert "\n" not in problem(east, topic, "west")
    producer.send(b"is kept here")
    goes_on(at_east, at_west, east, "beside-large")


def test_a_schema_that_is_refused_there_holds_its_topic_and_no_other(
    at_east: pulsar.Client, at_west: pulsar.Client, east: Standalone, west: Standalone
) -> None:
    topic = f"persistent://{NAMESPACE}/schemas-differ"
    at_west.create_producer(topic, schema=AvroSchema(Other)).close()
    producer = at_east.create_producer(topic, schema=AvroSchema(Flight))
    producer.send(Flight(carrier="AA"))
    wait_until(lambda: "chema" in problem(east, topic, "west"), "the reason is said")
    assert "\n" not in problem(east, topic, "west")
    goes_on(at_east, at_west, east, "beside-schemas")


def test_clocks_an_hour_apart_change_nothing(
    at_east: pulsar.Client, at_west: pulsar.Client, east: Standalone, west: Standalone
) -> None:
    topic = f"persistent://{NAMESPACE}/clocks"
    message = goes_on(at_east, at_west, east, "clocks")
    back = open_topic(at_west, west, topic, "east")
    apart_s = clock_s(east, topic) - clock_s(west, topic)
    assert 3_500 < apart_s < 3_700
    here = at_east.subscribe(topic, "s", initial_position=pulsar.InitialPosition.Earliest)
    assert receive(here).data() == b"goes on"
    back.send(b"back")
    assert receive(here).data() == b"back"
    assert abs(message.publish_timestamp() - receive_time(at_east, topic)) < 60_000
    for server, other in ((east, "west"), (west, "east")):
        delay_s = replication(server, topic)[other]["replicationDelayInSeconds"]
        assert isinstance(delay_s, int)
        assert 0 <= delay_s < 60


def receive_time(client: pulsar.Client, topic: str) -> int:
    """When the first message of a topic was published, as its own cluster says."""
    reader = client.create_reader(topic, pulsar.MessageId.earliest)
    found = int(reader.read_next(20_000).publish_timestamp())
    reader.close()
    return found


def clock_s(server: Standalone, topic: str) -> float:
    """When the topic's ledger was created, by the server's clock."""
    found = admin(server, "GET", f"{topic_path(topic)}/internalStats")
    return datetime.fromisoformat(found["lastLedgerCreatedTimestamp"]).timestamp()
