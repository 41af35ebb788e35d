"""Deduplication: what is stored, what is answered instead, and what a snapshot holds."""

import asyncio
from typing import Any

import pytest

from magnetar.broker.features.deduplication import Deduplication
from magnetar.broker.features.deduplication.sequence_ids import SequenceIds
from magnetar.ledger.errors import LogFencedError, LogTerminatedError, LogUnavailableError
from magnetar.ledger.position import Position
from magnetar.sdk.wire import BaseCommand
from magnetar.sdk.wire import pulsar_pb2 as pb
from tests.unit.broker.harness import Client, Harness, entry, send_frame
from tests.unit.broker.memory_parts import TOPIC, MemorySnapshot, feature_of
from tests.waiting import settle

_MINUS_1 = (1 << 64) - 1


def _harness(**settings: Any) -> Harness:
    return Harness(deduplication=True, **settings)


async def _producing(harness: Harness, name: str = "p", **fields: Any) -> Client:
    client = harness.client()
    answer = await client.produce(producer_name=name, **fields)
    assert answer.type == BaseCommand.PRODUCER_SUCCESS, answer
    return client


def _frame(sequence_id: int, *, name: str = "p", highest: int = 0, **metadata: Any) -> bytes:
    payload = entry(
        b"body-%d" % sequence_id,
        producer_name=name,
        sequence_id=metadata.pop("inner_id", sequence_id),
        **metadata,
    )
    fields: dict[str, Any] = {"highest_sequence_id": highest} if highest else {}
    return send_frame(0, sequence_id, payload=payload, **fields)


def _send(client: Client, *sequence_ids: int) -> None:
    """SENDs in one read."""
    client.send_bytes(b"".join(map(_frame, sequence_ids)))


def _answers(client: Client) -> list[Any]:
    """(sequence id, entry id) of receipts, "duplicate" for entry id -1; (sequence id, code)."""
    found: list[Any] = []
    for command, _ in client.received():
        if command.type == BaseCommand.SEND_RECEIPT:
            receipt = command.send_receipt
            ids = receipt.message_id.ledgerId, receipt.message_id.entryId
            place = "duplicate" if ids == (_MINUS_1, _MINUS_1) else ids[1]
            found.append((receipt.sequence_id, place))
        else:
            assert command.type == BaseCommand.SEND_ERROR, command
            found.append((command.send_error.sequence_id, command.send_error.error))
    return found


def _bodies(harness: Harness) -> list[int]:
    return [int(each.rpartition(b"-")[2]) for each in harness.log.entries[7]]


def _snapshot(harness: Harness) -> MemorySnapshot:
    return harness.topics.snapshots[TOPIC]


# What is sent again


async def test_what_is_sent_again_is_answered_with_minus_one_and_not_stored() -> None:
    harness = _harness()
    client = await _producing(harness)
    _send(client, 0, 1, 2)
    await settle()
    _send(client, 1, 2, 3)
    await settle()
    assert _answers(client) == [
        (0, 0),
        (1, 1),
        (2, 2),
        (1, "duplicate"),
        (2, "duplicate"),
        (3, 3),
    ]
    assert _bodies(harness) == [0, 1, 2, 3]
    assert feature_of(harness.topic, Deduplication).duplicates == 2


async def test_receipts_stay_in_order_when_duplicates_and_writes_are_mixed() -> None:
    """Trap 4: in the order of the SENDs, whatever becomes of them."""
    harness = _harness()
    client = await _producing(harness)
    _send(client, 5)
    await settle()
    assert _answers(client) == [(5, 0)]
    harness.log.is_immediate = False
    _send(client, 6, 3, 7, 4, 5, 8)
    assert _answers(client) == []
    harness.log.confirm(1)
    assert _answers(client) == [(6, 1), (3, "duplicate")]
    harness.log.confirm(1)
    assert _answers(client) == [(7, 2), (4, "duplicate"), (5, "duplicate")]
    harness.log.confirm(1)
    assert _answers(client) == [(8, 3)]
    assert harness.services.budget.pending_bytes == 0


async def test_what_is_being_stored_is_undecided() -> None:
    harness = _harness()
    client = await _producing(harness)
    harness.log.is_immediate = False
    _send(client, 0)
    _send(client, 0, 1)
    harness.log.confirm()
    assert _answers(client) == [(0, 0), (0, pb.ServerError.PersistenceError), (1, 1)]
    assert _bodies(harness) == [0, 1]


async def test_names_do_not_disturb_each_other() -> None:
    harness = _harness()
    one, two = await _producing(harness, "p"), await _producing(harness, "q")
    _send(one, 0)
    two.send_bytes(_frame(0, name="q"))
    await settle()
    assert _answers(one) == [(0, 0)]
    assert _answers(two) == [(0, 1)]


async def test_a_batch_counts_with_its_highest_sequence_id() -> None:
    harness = _harness()
    client = await _producing(harness)
    client.send_bytes(_frame(0, highest=4) + _frame(4) + _frame(5))
    harness.log.confirm()
    await settle()
    client.send_bytes(_frame(3, highest=4))
    await settle()
    receipts = [command for command, _ in client.received()]
    assert receipts[0].send_receipt.highest_sequence_id == 4
    assert receipts[-1].send_receipt.highest_sequence_id == 4
    assert receipts[-1].send_receipt.message_id.entryId == _MINUS_1
    assert _bodies(harness) == [0, 5]


async def test_only_the_last_chunk_of_a_message_counts() -> None:
    harness = _harness()
    client = await _producing(harness)

    def chunk(number: int) -> bytes:
        return _frame(7, uuid="p-7", num_chunks_from_msg=3, chunk_id=number, total_chunk_msg_size=3)

    client.send_bytes(chunk(0) + chunk(1))
    await settle()
    assert feature_of(harness.topic, Deduplication).last_sequence_id("p") == -1
    client.send_bytes(chunk(0) + chunk(1) + chunk(2))
    await settle()
    assert feature_of(harness.topic, Deduplication).last_sequence_id("p") == 7
    client.send_bytes(chunk(0) + chunk(2))
    await settle()
    assert [place for _, place in _answers(client)] == [0, 1, 2, 3, 4, 5, "duplicate"]


# What is refused


@pytest.mark.parametrize(
    "frame",
    [
        _frame(0, name="somebody else"),
        _frame(1, inner_id=2),
        _frame(1 << 63),
        _frame(1, highest=1 << 63),
    ],
)
async def test_what_a_replay_could_not_know_is_refused(frame: bytes) -> None:
    harness = _harness()
    client = await _producing(harness)
    client.send_bytes(frame)
    assert client.take(BaseCommand.SEND_ERROR).send_error.error == pb.ServerError.MetadataError
    assert client.take(BaseCommand.CLOSE_PRODUCER).close_producer.producer_id == 0
    assert (await client.produce(producer_name="p")).type == BaseCommand.PRODUCER_SUCCESS
    _send(client, 0)
    await settle()
    assert _answers(client) == [(0, 0)]


async def test_what_was_refused_and_is_sent_again_is_no_duplicate_of_what_came_behind_it() -> None:
    harness = _harness()
    client = await _producing(harness)
    _send(client, 1)
    damaged = bytearray(_frame(2))
    damaged[-1] ^= 1
    client.send_bytes(bytes(damaged) + _frame(3))
    _send(client, 4)
    await settle()
    assert client.take(BaseCommand.SEND_RECEIPT).send_receipt.sequence_id == 1
    refused = client.take(BaseCommand.SEND_ERROR).send_error
    assert (refused.sequence_id, refused.error) == (2, pb.ServerError.ChecksumError)
    assert client.take(BaseCommand.CLOSE_PRODUCER).close_producer.producer_id == 0
    assert _bodies(harness) == [1]

    answer = await client.produce(producer_name="p", epoch=1)
    assert answer.producer_success.last_sequence_id == 1
    _send(client, 2, 3, 4)
    await settle()
    assert [place for _, place in _answers(client)] == [1, 2, 3]
    assert _bodies(harness) == [1, 2, 3, 4]


async def test_what_is_refused_behind_messages_under_way_is_answered_behind_them() -> None:
    harness = _harness()
    client = await _producing(harness)
    harness.log.is_immediate = False
    _send(client, 1)
    client.send_bytes(_frame(2, inner_id=9))
    assert not client.received()
    harness.log.confirm()
    await settle()
    kinds = [command.type for command, _ in client.received()]
    assert kinds == [BaseCommand.SEND_RECEIPT, BaseCommand.SEND_ERROR, BaseCommand.CLOSE_PRODUCER]


async def test_the_largest_sequence_id_is_taken() -> None:
    harness = _harness()
    client = await _producing(harness)
    _send(client, (1 << 63) - 1)
    await settle()
    assert _answers(client) == [((1 << 63) - 1, 0)]
    again = await harness.client().produce(producer_name="p")
    assert again.producer_success.last_sequence_id == (1 << 63) - 1


# Producers that come back


async def test_a_producer_is_told_its_last_sequence_id() -> None:
    harness = _harness()
    client = await _producing(harness)
    _send(client, 0, 1, 41)
    await settle()
    client.connection.lost()
    answer = await harness.client().produce(producer_name="p")
    assert answer.producer_success.last_sequence_id == 41
    answer = await harness.client().produce(producer_name="q")
    assert answer.producer_success.last_sequence_id == -1


async def test_it_is_told_when_what_its_former_self_sent_is_decided() -> None:
    harness = _harness()
    client = await _producing(harness)
    harness.log.is_immediate = False
    _send(client, 0, 1)
    client.connection.lost()
    again = harness.client()
    opening = asyncio.ensure_future(again.produce(producer_name="p", epoch=1))
    await settle()
    assert not opening.done()
    harness.log.confirm()
    assert (await opening).producer_success.last_sequence_id == 1
    _send(again, 0, 1)
    assert _answers(again) == [(0, "duplicate"), (1, "duplicate")]


async def test_who_waits_for_that_hears_when_the_topic_is_closed() -> None:
    harness = _harness()
    client = await _producing(harness)
    harness.log.is_immediate = False
    _send(client, 0)
    client.connection.lost()
    again = harness.client()
    opening = asyncio.ensure_future(again.produce(producer_name="p", epoch=1))
    await settle()
    harness.topic.disconnect_all()
    assert (await opening).error.error == pb.ServerError.ServiceNotReady


# Outcomes that are not known


async def test_an_unknown_outcome_ends_the_topics_time_and_nothing_is_taken_any_more() -> None:
    harness = _harness()
    client, other = await _producing(harness), await _producing(harness, "q")
    reasons: list[str] = []

    def reload(reason: str) -> None:
        reasons.append(reason)
        harness.topic.disconnect_all()

    harness.topic.reload = reload
    harness.log.is_immediate = False
    _send(client, 0)
    _send(client, 1)
    harness.log.waiting.popleft().on_failed(LogUnavailableError("who knows"))
    assert len(reasons) == 1
    assert client.commands() == other.commands() == [BaseCommand.CLOSE_PRODUCER]
    other.send_bytes(_frame(0, name="q"))
    assert len(harness.log.waiting) == 1
    harness.log.fail(LogFencedError("abandoned"))
    assert len(reasons) == 1


async def test_a_terminated_topic_sends_producers_away_and_is_not_loaded_again() -> None:
    harness = _harness()
    client = await _producing(harness)
    harness.topic.reload = lambda reason: pytest.fail(reason)
    harness.log.is_immediate = False
    _send(client, 0)
    harness.log.terminated = Position(7, -1)
    harness.log.fail(LogTerminatedError("it was terminated"))
    assert client.commands() == [BaseCommand.CLOSE_PRODUCER]


async def test_what_comes_while_a_topic_ends_has_it_not_loaded_again() -> None:
    """The log refuses before its end is stored, as at a split: nothing of that can be in it."""
    harness = _harness()
    client = await _producing(harness)
    harness.topic.reload = lambda reason: pytest.fail(reason)
    harness.log.is_immediate = False
    _send(client, 0)
    harness.log.fail(LogTerminatedError("it is being terminated"))
    assert client.commands() == [BaseCommand.CLOSE_PRODUCER]


async def test_a_topic_that_does_not_deduplicate_goes_on() -> None:
    harness = Harness()
    client, other = await _producing(harness), await _producing(harness, "q")
    harness.log.is_immediate = False
    _send(client, 0)
    harness.log.fail(LogUnavailableError("who knows"))
    assert BaseCommand.CLOSE_PRODUCER in client.commands()
    assert not harness.topic.is_closed
    assert other.commands() == []


async def test_no_duplicates_receipt_leaves_after_the_tenure_has_ended() -> None:
    harness = _harness()
    client = await _producing(harness)
    _send(client, 0)
    await settle()
    client.received()
    harness.topics.tenure.is_held = False
    _send(client, 0)
    assert _answers(client) == []


# Snapshots


@pytest.mark.parametrize(("entries", "snapshots"), [(9, 0), (10, 1), (11, 1), (20, 2)])
async def test_a_snapshot_is_taken_every_so_many_entries(entries: int, snapshots: int) -> None:
    harness = _harness(dedup_snapshot_entries=10)
    client = await _producing(harness)
    for number in range(entries):
        _send(client, number)
        await settle()
    assert _snapshot(harness).saves == snapshots
    if snapshots:
        assert _snapshot(harness).mark_delete == Position(7, 10 * snapshots - 1)
        assert _snapshot(harness).position_properties == {"p": 10 * snapshots - 1}


async def test_m19_a_snapshot_holds_what_is_stored_and_nothing_newer() -> None:
    harness = _harness(dedup_snapshot_entries=1)
    client = await _producing(harness)
    harness.log.is_immediate = False
    for number in range(3):
        _send(client, number)
    harness.log.confirm(1)
    assert _snapshot(harness).position_properties == {"p": 0}
    assert _snapshot(harness).mark_delete == Position(7, 0)


async def test_no_snapshot_is_taken_while_one_is_being_saved() -> None:
    harness = _harness(dedup_snapshot_entries=2)
    client = await _producing(harness)
    _snapshot(harness).is_saving = True
    _send(client, *range(2))
    await settle()
    _send(client, *range(2, 7))
    await settle()
    snapshot = _snapshot(harness)
    assert snapshot.saves == 1
    snapshot.persisted_mark_delete = snapshot.mark_delete
    _send(client, 7)
    await settle()
    assert snapshot.saves == 2
    assert snapshot.position_properties == {"p": 7}


async def test_closing_takes_a_last_snapshot() -> None:
    harness = _harness()
    client = await _producing(harness)
    _send(client, 0, 1, 2)
    await settle()
    harness.topic.disconnect_all()
    assert _snapshot(harness).position_properties == {"p": 2}
    assert _snapshot(harness).mark_delete == Position(7, 2)


async def test_loading_reads_what_the_snapshot_does_not_hold() -> None:
    harness = _harness()
    client = await _producing(harness)
    _send(client, 0, 1, 2)
    await settle()
    harness.topic.disconnect_all()
    harness.log.store(
        entry(b"body-3", producer_name="p", sequence_id=3, highest_sequence_id=6),
        entry(b"body-0", producer_name="q", sequence_id=9),
        entry(b"chunk", producer_name="q", sequence_id=10, num_chunks_from_msg=2, chunk_id=0),
        entry(b"marker", producer_name="p", sequence_id=99, marker_type=20),
        b"what is no entry",
    )
    harness.log.roll(8)
    harness.log.store(entry(b"late", producer_name="q", sequence_id=8))
    again = harness.client()
    for name, last in (("p", 6), ("q", 9), ("r", -1)):
        answer = await again.produce(last + 2, producer_name=name)
        assert answer.producer_success.last_sequence_id == last
    assert _snapshot(harness).mark_delete == Position(7, 2)
    assert harness.log.reads[0] == Position(7, 3)


async def test_a_long_replay_is_followed_by_a_snapshot() -> None:
    harness = _harness(dedup_snapshot_entries=3)
    await _producing(harness)
    harness.topic.disconnect_all()
    harness.log.store(*(entry(b"-", producer_name="p", sequence_id=each) for each in range(3)))
    await _producing(harness)
    assert _snapshot(harness).position_properties == {"p": 2}
    assert _snapshot(harness).mark_delete == Position(7, 2)


# Bounds


def _ids(names: int, *, now_s: float = 0.0) -> SequenceIds:
    ids = SequenceIds()
    for number in range(names):
        assert ids.accept(f"p{number}", [number], [0], now_s + number) == number
        ids.on_stored(f"p{number}", number)
    return ids


def test_a_snapshot_holds_the_names_that_were_used_last() -> None:
    ids = _ids(5)
    assert ids.snapshot(names_max=2, bytes_max=1 << 20) == {"p3": 3, "p4": 4}
    ids.accept("p0", [10], [0], 9.0)
    ids.on_stored("p0", 10)
    assert ids.snapshot(names_max=2, bytes_max=1 << 20) == {"p0": 10, "p4": 4}


@pytest.mark.parametrize(("bytes_max", "names"), [(27, 0), (28, 1), (55, 1), (56, 2)])
def test_a_snapshot_has_a_size(bytes_max: int, names: int) -> None:
    assert len(_ids(5).snapshot(names_max=9, bytes_max=bytes_max)) == names


@pytest.mark.parametrize(("unused_since_s", "forgotten"), [(0.0, 0), (0.5, 1), (2.0, 2), (9.0, 5)])
def test_names_that_were_not_used_for_long_are_forgotten(
    unused_since_s: float, forgotten: int
) -> None:
    ids = _ids(5)
    assert ids.forget(unused_since_s=unused_since_s, names_max=9, connected=()) == forgotten
    assert ids.last_of("p0") == (-1 if forgotten else 0)


@pytest.mark.parametrize(("names_max", "forgotten"), [(5, 0), (4, 1), (1, 4)])
def test_beyond_the_limit_the_names_unused_longest_are_forgotten(
    names_max: int, forgotten: int
) -> None:
    ids = _ids(5)
    assert ids.forget(unused_since_s=-1.0, names_max=names_max, connected=()) == forgotten
    assert len(ids) == 5 - forgotten


def test_who_is_connected_or_has_a_write_under_way_is_not_forgotten() -> None:
    ids = _ids(3)
    ids.accept("p1", [50], [0], 1.0)
    assert ids.forget(unused_since_s=99.0, names_max=9, connected={"p0"}) == 1
    assert [ids.last_of(f"p{number}") for number in range(3)] == [0, 50, -1]


@pytest.mark.parametrize(("size", "is_let_in"), [(1024, True), (1025, False)])
async def test_a_name_has_a_length(size: int, is_let_in: bool) -> None:
    answer = await _harness().client().produce(producer_name="n" * size)
    assert (answer.type == BaseCommand.PRODUCER_SUCCESS) is is_let_in
    if not is_let_in:
        assert answer.error.error == pb.ServerError.NotAllowedError
