"""Acknowledgements: whole entries, parts, and the cumulative one."""

import pytest

from magnetar.sdk.ack_grouping import PARTIAL_ENTRIES_MAX, AckCommands, AckGrouping
from magnetar.sdk.message_id import MessageId
from magnetar.sdk.wire import FrameDecoder
from magnetar.sdk.wire.pulsar_pb2 import CommandAck


def sent(commands: AckCommands) -> list[tuple[int, list[tuple[int, int, list[int]]]]]:
    return [
        (command.ack_type, [(i.ledgerId, i.entryId, list(i.ack_set)) for i in command.message_id])
        for command in commands.commands(7)
    ]


INDIVIDUAL, CUMULATIVE = CommandAck.Individual, CommandAck.Cumulative


def test_single_messages_are_acknowledged_as_entries() -> None:
    acks = AckGrouping(batch_index_ack=False)
    acks.add(1, 2, -1, 0)
    acks.add_entry(1, 3)
    assert len(acks) == 2
    commands = acks.take(7)
    assert sent(commands) == [(INDIVIDUAL, [(1, 2, []), (1, 3, [])])]
    assert len(acks) == 0


def test_encoded_frames_say_the_same_as_the_commands() -> None:
    acks = AckGrouping(batch_index_ack=False)
    for entry_id in range(2_500):
        acks.add_entry(entry_id // 900, entry_id)
    commands = acks.take(300)
    frames = FrameDecoder().feed(b"".join(commands.encode_entries(300)))
    assert [command.ack for command, _ in frames] == commands.commands(300)
    assert [len(command.ack.message_id) for command, _ in frames] == [1000, 1000, 500]


def test_batch_is_acknowledged_when_its_last_message_is() -> None:
    acks = AckGrouping(batch_index_ack=False)
    acks.add(1, 2, 0, 3)
    acks.add(1, 2, 2, 3)
    acks.add(1, 2, 2, 3)
    assert len(acks) == 0
    acks.add(1, 2, 1, 3)
    assert sent(acks.take(7)) == [(INDIVIDUAL, [(1, 2, [])])]
    assert not acks.has_partial


def test_batch_index_acks_tell_what_remains() -> None:
    acks = AckGrouping(batch_index_ack=True)
    acks.add(1, 2, 0, 3)
    assert sent(acks.take(7)) == [(INDIVIDUAL, [(1, 2, [6])])]
    acks.add(1, 2, 0, 3)
    assert len(acks) == 0, "nothing new"
    acks.add(1, 2, 1, 3)
    acks.add(1, 2, 2, 3)
    assert sent(acks.take(7)) == [(INDIVIDUAL, [(1, 2, [])])]


def test_a_batch_delivered_in_part_is_complete_and_the_rest_is_left_to_the_broker() -> None:
    """A transaction of another consumer may have the rest, and be aborted."""
    acks = AckGrouping(batch_index_ack=False)
    assert acks.deliver(1, 2, 3, 0b110) == 0b110
    assert not acks.add(1, 2, 1, 3)
    assert len(acks) == 0
    assert acks.add(1, 2, 2, 3)
    assert sent(acks.take(7)) == [(INDIVIDUAL, [(1, 2, [0b001])])]
    assert not acks.has_partial


def test_what_the_broker_left_out_and_sends_later_is_to_be_acknowledged() -> None:
    acks = AckGrouping(batch_index_ack=False)
    assert acks.deliver(1, 2, 3, 0b010) == 0b010
    assert acks.deliver(1, 2, 3, None) == 0b111
    for index in range(3):
        assert acks.add(1, 2, index, 3) == (index == 2)
    assert sent(acks.take(7)) == [(INDIVIDUAL, [(1, 2, [])])]


def test_what_comes_again_though_it_is_acknowledged_changes_nothing_about_the_rest() -> None:
    acks = AckGrouping(batch_index_ack=False)
    acks.add(1, 2, 0, 2)
    assert acks.deliver(1, 2, 2, 0b01) == 0
    assert acks.add(1, 2, 1, 2)
    assert sent(acks.take(7)) == [(INDIVIDUAL, [(1, 2, [])])]
    assert not acks.has_partial


def test_a_batch_that_compaction_shrank_is_acknowledged_whole_with_what_is_left_of_it() -> None:
    acks = AckGrouping(batch_index_ack=False)
    acks.leave_out(1, 2, 3, 0b110)
    assert not acks.add(1, 2, 1, 3)
    assert acks.add(1, 2, 2, 3)
    assert sent(acks.take(7)) == [(INDIVIDUAL, [(1, 2, [])])]


@pytest.mark.parametrize("batch_index_ack", [True, False])
@pytest.mark.parametrize("plain_first", [True, False])
def test_what_a_transaction_acknowledges_of_a_batch_is_left_to_it(
    batch_index_ack: bool, plain_first: bool
) -> None:
    acks = AckGrouping(batch_index_ack=batch_index_ack)
    if plain_first:
        acks.add(1, 2, 0, 2)
    acks.add_in_transaction((1, 2), 0b10, 2)
    if not plain_first:
        assert len(acks) == 0
        assert acks.add(1, 2, 0, 2)
    assert sent(acks.take(7)) == [(INDIVIDUAL, [(1, 2, [0b10])])]
    assert not acks.has_partial
    # It was aborted, and the message comes again.
    assert acks.deliver(1, 2, 2, 0b10) == 0b10
    assert acks.add(1, 2, 1, 2)
    assert sent(acks.take(7)) == [(INDIVIDUAL, [(1, 2, [0b01])])]


def test_a_batch_that_transactions_acknowledge_as_a_whole_leaves_nothing_behind() -> None:
    acks = AckGrouping(batch_index_ack=True)
    for index in range(3):
        acks.add_in_transaction((1, 2), 1 << index, 3)
    acks.add_in_transaction((1, 3), -1, 3)
    assert len(acks) == 0
    assert not acks.has_partial


def test_messages_behind_a_cumulative_one_complete_its_batch() -> None:
    acks = AckGrouping(batch_index_ack=False)
    acks.add_cumulative(MessageId(1, 5, 1, -1, 3))
    assert sent(acks.take(7)) == [(CUMULATIVE, [(1, 4, [])])]
    assert acks.add(1, 5, 2, 3)
    assert sent(acks.take(7)) == [(INDIVIDUAL, [(1, 5, [])])]
    acks.add(1, 6, 2, 3)
    acks.add_cumulative(MessageId(1, 6, 1, -1, 3))
    assert sent(acks.take(7)) == [(CUMULATIVE, [(1, 6, [])])]
    assert not acks.has_partial


def test_only_the_latest_cumulative_one_is_sent() -> None:
    acks = AckGrouping(batch_index_ack=False)
    acks.add_cumulative(MessageId(1, 5))
    acks.add_cumulative(MessageId(1, 4))
    assert sent(acks.take(7)) == [(CUMULATIVE, [(1, 5, [])])]


def test_cumulative_within_a_batch_stops_before_it() -> None:
    acks = AckGrouping(batch_index_ack=False)
    acks.add_cumulative(MessageId(1, 5, 1, -1, 3))
    assert sent(acks.take(7)) == [(CUMULATIVE, [(1, 4, [])])]
    acks.add_cumulative(MessageId(2, 0, 1, -1, 3))
    assert sent(acks.take(7)) == []


def test_cumulative_at_the_end_of_a_batch_takes_it_whole() -> None:
    acks = AckGrouping(batch_index_ack=False)
    acks.add(1, 4, 0, 3)
    acks.add_cumulative(MessageId(1, 5, 2, -1, 3))
    assert sent(acks.take(7)) == [(CUMULATIVE, [(1, 5, [])])]
    assert not acks.has_partial


def test_cumulative_with_index_acks_goes_into_the_batch() -> None:
    acks = AckGrouping(batch_index_ack=True)
    acks.add_cumulative(MessageId(1, 5, 1, -1, 3))
    assert sent(acks.take(7)) == [(CUMULATIVE, [(1, 5, [4])])]


def test_a_whole_entry_lies_behind_each_of_its_messages_cumulatively() -> None:
    acks = AckGrouping(batch_index_ack=True)
    acks.add_cumulative(MessageId(1, 5, 1, -1, 3))
    acks.add_cumulative(MessageId(1, 5))
    acks.add_cumulative(MessageId(1, 5, 0, -1, 3))
    ((data,),) = (command.message_id for command in acks.take(7).commands(7))
    assert (data.ledgerId, data.entryId, list(data.ack_set)) == (1, 5, [])


@pytest.mark.parametrize("batch_index_ack", [True, False])
def test_parts_of_batches_that_nobody_completes_here_are_forgotten_one_day(
    batch_index_ack: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("magnetar.sdk.ack_grouping.PARTIAL_ENTRIES_MAX", 3)
    acks = AckGrouping(batch_index_ack=batch_index_ack, shares_entries=True)
    for entry_id in range(5):
        acks.add(1, entry_id, 0, 2)
    assert [acks.remaining(1, at) for at in range(5)] == [None, None, 0b10, 0b10, 0b10]
    acks.deliver(1, 5, 2, 0b1)
    assert acks.remaining(1, 2) is None
    acks.add(1, 4, 1, 2)
    assert acks.take(0).entries == [(1, 4)]


def test_who_consumes_alone_acknowledges_every_batch_however_many_are_begun() -> None:
    acks = AckGrouping(batch_index_ack=False, shares_entries=False)
    count = PARTIAL_ENTRIES_MAX + 1
    for index in range(2):
        for entry_id in range(count):
            acks.add(1, entry_id, index, 2)
    assert acks.take(0).entries == [(1, entry_id) for entry_id in range(count)]
    assert not acks.has_partial


def test_what_is_begun_and_comes_to_another_is_forgotten_but_sent() -> None:
    acks = AckGrouping(batch_index_ack=True)
    acks.add(1, 2, 0, 2)
    acks.forget_parts()
    assert not acks.has_partial
    assert sent(acks.take(7)) == [(INDIVIDUAL, [(1, 2, [0b10])])]


@pytest.mark.parametrize("more", [1, 7, 20])
def test_a_batch_that_was_forgotten_does_not_drive_out_those_that_are_remembered(
    more: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("magnetar.sdk.ack_grouping.PARTIAL_ENTRIES_MAX", 20)
    acks = AckGrouping(batch_index_ack=False, shares_entries=True)
    for entry_id in range(20 + more):
        acks.add(1, entry_id, 0, 2)
    for entry_id in range(20 + more):
        acks.add(1, entry_id, 1, 2)
    # The forgotten ones take one place in turn, until one that is remembered is complete.
    assert acks.take(0).entries == [(1, entry_id) for entry_id in range(more + 1, 20 + more)]
    for index in range(2):
        acks.add(1, 0, index, 2)
    assert acks.take(0).entries == [(1, 0)], "it came again, as a whole"


def test_what_comes_again_from_before_is_completed_beside_what_was_forgotten(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As when an operator sets the subscription back, and others have completed what is here."""
    monkeypatch.setattr("magnetar.sdk.ack_grouping.PARTIAL_ENTRIES_MAX", 4)
    acks = AckGrouping(batch_index_ack=False, shares_entries=True)
    for entry_id in range(100, 106):
        acks.add(1, entry_id, 0, 2)
    for first in range(0, 60, 3):
        for index in range(2):
            for entry_id in range(first, first + 3):
                acks.add(1, entry_id, index, 2)
    assert len(acks.take(0).entries) == 60


@pytest.mark.parametrize("resumes", [True, False])
def test_what_is_acknowledged_within_a_batch_is_sent_though_the_batch_is_forgotten(
    resumes: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("magnetar.sdk.ack_grouping.PARTIAL_ENTRIES_MAX", 2)
    acks = AckGrouping(batch_index_ack=True, shares_entries=True)
    for entry_id in range(4):
        acks.add(1, entry_id, 0, 3)
    assert len(acks) == 4
    if resumes:
        acks.add(1, 0, 1, 3)
    first = (1, 0, [0b100 if resumes else 0b110])
    rest = [(1, entry_id, [0b110]) for entry_id in range(1, 4)]
    assert sent(acks.take(7)) == [(INDIVIDUAL, [first, *rest])]


def test_what_a_cumulative_one_covers_is_not_sent_besides() -> None:
    acks = AckGrouping(batch_index_ack=True)
    acks.add(1, 4, 0, 3)
    acks.add(1, 5, 2, 3)
    acks.add_cumulative(MessageId(1, 5, 0, -1, 3))
    assert sent(acks.take(7)) == [(CUMULATIVE, [(1, 5, [0b010])])]
    assert acks.remaining(1, 5) == 0b010


def test_a_chunk_stored_twice_is_acknowledged_with_its_message_and_never_before_it() -> None:
    acks = AckGrouping(batch_index_ack=True)
    acks.set_chunks((1, 1), [(1, 0)])
    assert acks.add_chunk((1, 1), (1, 2))
    assert len(acks) == 0
    acks.add_entry(1, 1)
    assert sent(acks.take(7)) == [(INDIVIDUAL, [(1, 1, []), (1, 0, []), (1, 2, [])])]
    assert not acks.add_chunk((1, 1), (1, 3)), "it is acknowledged"


def test_ids_that_are_of_no_message_keep_no_others_from_being_acknowledged() -> None:
    acks = AckGrouping(batch_index_ack=True)
    acks.add(-1, -1, -1, 0)
    acks.add(-1, 5, 0, 2)
    acks.add(7, 3, -1, 0)
    acks.add_cumulative(MessageId.EARLIEST)
    ids = [
        MessageId.from_data(data)
        for command in acks.take(1).commands(1)
        for data in command.message_id
    ]
    assert ids == [
        MessageId.EARLIEST,
        MessageId(-1, 5),
        MessageId.EARLIEST,
        MessageId(7, 3),
    ]
