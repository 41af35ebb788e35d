"""Copies that come to a topic: what is stored, what is answered instead, and who may bring them."""

from typing import Any

import pytest

from magnetar.broker.features.replication import Receiving
from magnetar.broker.features.replication.copies import POSITION_PROPERTY
from magnetar.broker.features.replication.names import replicator_name
from magnetar.broker.features.replication.source_marks import SOURCES_MAX
from magnetar.ledger.errors import LogUnavailableError
from magnetar.sdk.wire import BaseCommand, MessageMetadata
from magnetar.sdk.wire import pulsar_pb2 as pb
from magnetar.sdk.wire.frames import FRAME_SLACK_BYTES
from tests.unit.broker.harness import Client, Harness, entry, send_frame
from tests.unit.broker.memory_parts import TOPIC, feature_of
from tests.waiting import settle

HERE = "standalone"
EAST = replicator_name("east", HERE)
_MINUS_1 = (1 << 64) - 1
_INT64_MIN = 1 << 63


def magnetar_copy(
    place: int, *, after: int | None = None, cluster: str = "east", incarnation: int = 7
) -> bytes:
    """SEND of a copy of another Magnetar's entry 1:PLACE. `after`: of the copy before."""
    source = pb.SourcePosition(incarnation=incarnation, ledger_id=1, entry_id=place)
    if after is not None:
        source.previous_ledger_id, source.previous_entry_id = 1, after
    return _frame(place, replicated_from=cluster, magnetar_source=source)


def pulsar_copy(place: int, *, ledger: int = 1, cluster: str = "east", value: str = "") -> bytes:
    """SEND of a copy of an entry of Apache Pulsar's."""
    said = pb.KeyValue(key=POSITION_PROPERTY, value=value or f"{ledger}:{place}")
    return _frame(place, replicated_from=cluster, properties=[said])


def _frame(place: int, **metadata: Any) -> bytes:
    """The numbers of SEND and metadata are the first producer's, and say nothing here."""
    body = entry(b"body-%d" % place, producer_name="first", sequence_id=1000 - place, **metadata)
    return send_frame(0, 1000 - place, payload=body)


async def copying(harness: Harness, name: str = EAST) -> Client:
    client = harness.client()
    answer = await client.produce(producer_name=name)
    assert answer.type == BaseCommand.PRODUCER_SUCCESS, answer
    return client


def answers(client: Client) -> list[Any]:
    """What receipts say: (ledger, entry, "stored" or "duplicate"); codes of errors; "closed"."""
    found: list[Any] = []
    for command, _ in client.received():
        if command.type == BaseCommand.SEND_RECEIPT:
            receipt = command.send_receipt
            is_old = receipt.message_id.ledgerId == _MINUS_1
            said = "duplicate" if is_old else "stored"
            found.append((receipt.sequence_id, receipt.highest_sequence_id, said))
        elif command.type == BaseCommand.SEND_ERROR:
            found.append(command.send_error.error)
        else:
            assert command.type == BaseCommand.CLOSE_PRODUCER, command
            found.append("closed")
    return found


def bodies(harness: Harness) -> list[int]:
    return [int(each.rpartition(b"-")[2]) for each in harness.log.entries[7]]


@pytest.fixture(params=[False, True], ids=["plain", "deduplicating"])
def harness(request: pytest.FixtureRequest) -> Harness:
    return Harness(deduplication=request.param)


async def test_copies_are_stored_once_and_receipted_by_their_places(harness: Harness) -> None:
    client = await copying(harness)
    client.send_bytes(magnetar_copy(0) + magnetar_copy(1, after=0))
    await settle()
    client.send_bytes(magnetar_copy(1, after=0) + magnetar_copy(5, after=1))
    await settle()
    assert answers(client) == [
        (1, 0, "stored"),
        (1, 1, "stored"),
        (1, 1, "duplicate"),
        (1, 5, "stored"),
    ]
    assert bodies(harness) == [0, 1, 5]
    assert feature_of(harness.topic, Receiving).duplicates == 1


async def test_copies_of_apache_pulsar_are_known_by_its_property(harness: Harness) -> None:
    client = await copying(harness)
    client.send_bytes(pulsar_copy(3) + pulsar_copy(7) + pulsar_copy(0, ledger=2))
    await settle()
    client.send_bytes(pulsar_copy(7) + pulsar_copy(1, ledger=2))
    await settle()
    assert answers(client) == [
        (1, 3, "stored"),
        (1, 7, "stored"),
        (2, 0, "stored"),
        (1, 7, "duplicate"),
        (2, 1, "stored"),
    ]


async def test_behind_a_gap_nothing_is_taken_until_the_producer_comes_again(
    harness: Harness,
) -> None:
    client = await copying(harness)
    client.send_bytes(magnetar_copy(0))
    await settle()
    client.send_bytes(magnetar_copy(0) + magnetar_copy(2, after=1) + magnetar_copy(3, after=0))
    client.send_bytes(magnetar_copy(4, after=0))
    await settle()
    assert answers(client) == [
        (1, 0, "stored"),
        (1, 0, "duplicate"),
        pb.PersistenceError,
        pb.PersistenceError,
        "closed",
    ]
    client = await copying(harness)
    client.send_bytes(magnetar_copy(1, after=0) + magnetar_copy(2, after=1))
    await settle()
    assert answers(client) == [(1, 1, "stored"), (1, 2, "stored")]
    assert bodies(harness) == [0, 1, 2]


async def test_behind_a_refused_copy_nothing_is_taken(harness: Harness) -> None:
    """Rule 18.12a: the next one would raise the mark over it."""
    client = await copying(harness)
    damaged = bytearray(pulsar_copy(1))
    damaged[-1] ^= 1
    client.send_bytes(pulsar_copy(0) + bytes(damaged) + pulsar_copy(2))
    await settle()
    client.send_bytes(pulsar_copy(3))
    await settle()
    assert answers(client) == [(1, 0, "stored"), pb.ChecksumError, "closed"]
    assert bodies(harness) == [0]


async def test_a_copy_that_is_being_stored_is_waited_for_by_who_comes_again(
    harness: Harness,
) -> None:
    client = await copying(harness)
    harness.log.is_immediate = False
    client.send_bytes(magnetar_copy(0))
    await settle()
    client.connection.lost()
    again = harness.client()
    again.send(
        BaseCommand.PRODUCER,
        producer=pb.CommandProducer(
            topic=TOPIC, producer_id=0, request_id=again.next_request_id(), producer_name=EAST
        ),
    )
    await settle()
    assert again.commands() == []
    harness.log.confirm()
    await again.next(BaseCommand.PRODUCER_SUCCESS)
    again.send_bytes(magnetar_copy(0))
    await settle()
    assert answers(again) == [(1, 0, "duplicate")]


async def test_a_failed_append_of_copies_has_the_log_recovered(harness: Harness) -> None:
    client = await copying(harness)
    reasons: list[str] = []
    harness.topic.reload = reasons.append
    harness.log.is_immediate = False
    client.send_bytes(magnetar_copy(0))
    harness.log.fail(LogUnavailableError("no quorum"))
    await settle()
    assert "copies may be stored or not" in reasons


async def test_marks_are_those_of_the_recovered_log(harness: Harness) -> None:
    client = await copying(harness)
    client.send_bytes(magnetar_copy(0) + magnetar_copy(1, after=0))
    await settle()
    harness.topic.disconnect_all()
    harness.topics.marks[TOPIC].position_properties = {}
    harness.topics.marks[TOPIC].mark_delete = harness.log.previous_position(
        harness.log.last_confirmed
    )
    client = await copying(harness)
    client.send_bytes(magnetar_copy(1, after=0) + magnetar_copy(2, after=1))
    await settle()
    assert answers(client) == [(1, 1, "duplicate"), (1, 2, "stored")]


async def test_the_last_snapshot_tells_the_next_owner(harness: Harness) -> None:
    client = await copying(harness)
    client.send_bytes(magnetar_copy(0) + magnetar_copy(1, after=0))
    await settle()
    harness.topic.disconnect_all()
    assert harness.topics.marks[TOPIC].position_properties == {
        "east.7.ledger": 1,
        "east.7.entry": 1,
    }
    assert harness.topics.marks[TOPIC].mark_delete == harness.log.last_confirmed


async def test_markers_pass_beside_the_marks(harness: Harness) -> None:
    client = await copying(harness)
    marker = entry(b"", producer_name="pulsar.marker", marker_type=10, replicated_from="east")
    client.send_bytes(pulsar_copy(4) + send_frame(0, 0, payload=marker, marker=True))
    await settle()
    assert answers(client) == [(1, 4, "stored"), (0, _INT64_MIN, "stored")]


async def test_a_copy_without_a_place_is_stored_at_least_once(harness: Harness) -> None:
    """Of releases of Apache Pulsar that do not say it; they compare the ids of their SENDs."""
    client = await copying(harness, "pulsar.repl.east")
    for _ in range(2):
        client.send_bytes(_frame(0, replicated_from="east"))
        await settle()
    assert answers(client) == [(1000, 0, "stored"), (1000, 0, "stored")]


@pytest.mark.parametrize(
    "name", ["pulsar.repl.east-->elsewhere", f"pulsar.repl.{HERE}-->{HERE}", f"pulsar.repl.{HERE}"]
)
async def test_a_replicator_that_means_another_cluster_is_refused(name: str) -> None:
    client = Harness().client()
    answer = await client.produce(producer_name=name)
    assert answer.error.error == pb.NotAllowedError
    assert "wrong names" in answer.error.message


@pytest.mark.parametrize(
    "metadata",
    [{"replicated_from": "east"}, {"magnetar_source": pb.SourcePosition(incarnation=7)}],
    ids=["cluster", "place"],
)
async def test_only_replicators_bring_copies(harness: Harness, metadata: dict[str, Any]) -> None:
    """Rule 5.1: forged ones are refused, not ignored."""
    await copying(harness)
    client = harness.client()
    await client.produce(producer_name="p")
    source = metadata.get("magnetar_source")
    if source is not None:
        source.ledger_id, source.entry_id = 1, 1
    client.send_bytes(send_frame(0, 0, payload=entry(b"body-0", **metadata)))
    await settle()
    assert answers(client)[0] == pb.NotAllowedError
    assert bodies(harness) == []


async def test_a_replicator_brings_copies_of_its_own_cluster_alone(harness: Harness) -> None:
    client = await copying(harness)
    client.send_bytes(magnetar_copy(0, cluster="west"))
    await settle()
    assert answers(client) == [pb.NotAllowedError, "closed"]


@pytest.mark.parametrize("value", ["1", "1:x", ":", "-1:0", "1:99999999999999999999", "1:2:3"])
async def test_a_place_that_is_none_is_refused(harness: Harness, value: str) -> None:
    client = await copying(harness)
    client.send_bytes(pulsar_copy(0, value=value))
    await settle()
    assert answers(client) == [pb.MetadataError, "closed"]


async def test_the_sources_of_a_topic_are_bounded(harness: Harness) -> None:
    client = await copying(harness)
    for incarnation in range(1, SOURCES_MAX + 1):
        client.send_bytes(magnetar_copy(0, incarnation=incarnation))
        await settle()
    assert len(answers(client)) == SOURCES_MAX
    client.send_bytes(magnetar_copy(0, incarnation=SOURCES_MAX + 1))
    await settle()
    assert answers(client) == [pb.NotAllowedError, "closed"]


async def test_a_topic_that_no_cluster_copies_to_has_nothing_of_it() -> None:
    harness = Harness()
    client = harness.client()
    await client.produce(producer_name="p")
    assert harness.topics.marks == {}
    assert harness.topic.line.gates == ()
    assert harness.topic.line.checks == ()


def test_consumers_do_not_see_the_place_of_a_copy() -> None:
    """The place is in a field that official clients do not know."""
    assert MessageMetadata.DESCRIPTOR.fields_by_name["magnetar_source"].number > 1000


async def test_replicators_are_told_of_room_for_metadata() -> None:
    """Apache's counts metadata to a message, and passes over for good what is too large."""
    harness = Harness()
    limits: list[int] = []
    for is_replicator in (False, True):
        client = harness.client(connect=False)
        flags = pb.FeatureFlags(supports_repl_dedup_by_lid_and_eid=is_replicator)
        connect = pb.CommandConnect(client_version="t", protocol_version=20, feature_flags=flags)
        client.send(BaseCommand.CONNECT, connect=connect)
        connected = await client.next(BaseCommand.CONNECTED)
        limits.append(connected.connected.max_message_size)
    limit = harness.services.settings.message_bytes_max
    assert limits == [limit, limit + FRAME_SLACK_BYTES]
