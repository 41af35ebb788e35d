"""Entries between the broker and the application, without either."""

from dataclasses import replace

import pytest

from magnetar.sdk.ack_grouping import AckGrouping
from magnetar.sdk.batch import EntrySource, MessageBatch, encode_plain_batch
from magnetar.sdk.errors import CorruptMessageError
from magnetar.sdk.message import Message
from magnetar.sdk.receiver_queue import Delivery, ReceiverQueue
from magnetar.sdk.wire import MESSAGES_PER_ENTRY_MAX
from magnetar.sdk.wire.pulsar_pb2 import CommandMessage, MessageIdData, MessageMetadata


class Queue(ReceiverQueue):
    """With what it grants."""

    def __init__(self, source: EntrySource | None = None) -> None:
        self.granted: list[int] = []
        source, acks = source or EntrySource("t"), AckGrouping(batch_index_ack=True)
        super().__init__(source, acks, messages_max=2, is_reader=False, grant=self._note)

    def _note(self, messages: int) -> bool:
        self.granted.append(messages)
        return True


def delivery(payloads: list[bytes], ack_set: list[int] | None = None) -> Delivery:
    metadata = MessageMetadata(
        producer_name="p", sequence_id=0, publish_time=1, num_messages_in_batch=len(payloads)
    ).SerializeToString()
    body = encode_plain_batch(payloads, 0)
    place = MessageIdData(ledgerId=1, entryId=0)
    message = CommandMessage(consumer_id=0, message_id=place, ack_set=ack_set)
    return message, len(metadata).to_bytes(4, "big") + metadata + body


def test_credit_of_what_is_dropped_is_what_the_broker_charged() -> None:
    queue = Queue()
    queue.extend([delivery([b"a"] * 4, ack_set=[0b1000]), delivery([b"a"] * 4)])
    queue.drop()
    assert queue.granted == [1 + 4]


def test_credit_of_an_entry_is_returned_whatever_its_opening_raises() -> None:
    def fail(_: MessageBatch) -> MessageBatch:
        raise LookupError("a defect")

    queue = Queue()
    queue.open_entry = fail
    queue.extend([delivery([b"a"] * 4)])
    with pytest.raises(LookupError):
        queue.take()
    assert queue.granted == [4]


def test_what_is_put_back_while_the_queue_is_held_is_held_too() -> None:
    queue = Queue()
    queue.extend([delivery([b"a", b"b", b"c"])])
    taken: list[Message] = []
    queue.take_more(taken, 2)
    queue.hold()
    queue.put_back(taken)
    assert (queue.take(), queue.last_taken) == (None, None)
    queue.release()
    again: list[Message] = []
    queue.take_more(again, 3)
    assert [message.data for message in again] == [b"a", b"b", b"c"]


def test_what_was_taken_last_is_known_again_if_the_queue_is_not_moved() -> None:
    queue = Queue()
    queue.extend([delivery([b"a", b"b", b"c"])])
    taken: list[Message] = []
    queue.take_more(taken, 2)
    queue.hold()
    queue.put_back(taken[1:])
    queue.release()
    assert queue.last_taken == replace(taken[0].message_id, batch_size=0)


def test_what_is_asked_for_again_is_dropped_and_its_credit_returned() -> None:
    queue = Queue()
    first, second = delivery([b"a", b"b", b"c"]), delivery([b"d"] * 5)
    second[0].message_id.entryId = 1
    queue.extend([first, second])
    taken: list[Message] = []
    queue.take_more(taken, 1)
    queue.drop_entries({(1, 0)}, of_before=False)
    assert queue.granted == [1, 2]
    queue.drop_entries({(1, 1)}, of_before=False)
    assert queue.has_message()
    queue.drop_entries({(1, 1)}, of_before=True)
    assert queue.granted == [1, 2, 5]
    assert not queue.has_message()


def test_an_entry_of_too_many_messages_returns_the_permits_that_the_broker_took() -> None:
    queue = Queue()
    message, _ = delivery([b"a"], ack_set=[-1])
    metadata = MessageMetadata(
        producer_name="p", sequence_id=0, publish_time=1, num_messages_in_batch=(1 << 31) - 1
    ).SerializeToString()
    payload = len(metadata).to_bytes(4, "big") + metadata
    queue.extend([(message, payload), (delivery([b"a"])[0], payload)])
    for _ in range(2):
        with pytest.raises(CorruptMessageError, match="a batch of 2147483647 messages"):
            queue.take()
    assert queue.granted == [64, MESSAGES_PER_ENTRY_MAX]


def test_only_a_bounded_part_of_the_queue_is_opened_ahead() -> None:
    queue = Queue(EntrySource("t", decompressed_bytes_max=100))
    opened: list[int] = []

    def note(batch: MessageBatch) -> MessageBatch:
        opened.append(batch.payload_bytes)
        return batch

    queue.open_entry = note
    queue.extend([delivery([b"a" * 30])] * 10)
    for _ in range(3):
        queue.open_ahead()
        assert opened == [38, 38, 38]
    for taken in range(10):
        assert queue.take() is not None
        assert len(opened) == max(3, taken + 1)


def test_what_is_opened_ahead_and_not_delivered_counts_too() -> None:
    queue = Queue(EntrySource("t", decompressed_bytes_max=100))
    given_up: list[MessageBatch] = []
    queue.open_entry = lambda batch: given_up.append(batch)
    queue.extend([delivery([b"a" * 30])] * 10)
    queue.open_ahead()
    assert len(given_up) == 3
    assert queue.take() is None
    assert len(given_up) == 10
