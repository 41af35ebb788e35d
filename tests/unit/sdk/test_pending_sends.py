"""Receipts against what is pending."""

import pytest

from magnetar.sdk.errors import SdkError
from magnetar.sdk.message_id import MessageId
from magnetar.sdk.pending_sends import ChunkedSend, PendingSend, PendingSends, receipt_id
from magnetar.sdk.producing.message_encoder import MessageEncoder
from magnetar.sdk.settings import ProducerSettings
from magnetar.sdk.wire.pulsar_pb2 import CommandSendReceipt, MessageIdData


def send(sequence_id: int, messages: int = 1, sent_at_s: float = 0.0) -> PendingSend:
    return PendingSend(
        sequence_id,
        sequence_id + messages - 1,
        b"",
        b"",
        messages,
        messages > 1,
        10 * messages,
        sent_at_s,
    )


def receipts(*sequence_ids: int) -> list[CommandSendReceipt]:
    return [CommandSendReceipt(producer_id=0, sequence_id=each) for each in sequence_ids]


def pending_of(*sends: PendingSend) -> PendingSends:
    pending = PendingSends()
    for each in sends:
        pending.add(each)
    return pending


def test_receipts_take_the_sends_they_stand_for() -> None:
    pending = pending_of(send(0), send(1), send(2))
    taken, well = pending.take(receipts(0, 1))
    assert ([each.sequence_id for each, _ in taken], well) == ([0, 1], True)
    assert (len(pending), pending.messages, pending.payload_bytes) == (1, 1, 10)


@pytest.mark.parametrize("sequence_id", [5, 6, 7])
def test_any_sequence_id_of_a_batch_confirms_it(sequence_id: int) -> None:
    pending = pending_of(send(5, 3), send(8))
    taken, well = pending.take(receipts(sequence_id))
    assert ([each.sequence_id for each, _ in taken], well) == ([5], True)


def test_receipt_of_something_older_is_ignored() -> None:
    pending = pending_of(send(5))
    assert pending.take(receipts(3, 4)) == ([], True)
    assert PendingSends().take(receipts(3)) == ([], True)


def test_receipt_of_something_newer_is_a_fault_and_is_not_used() -> None:
    pending = pending_of(send(5), send(6))
    taken, well = pending.take(receipts(5, 7))
    assert ([each.sequence_id for each, _ in taken], well) == ([5], False)
    assert pending.oldest is not None
    assert pending.oldest.sequence_id == 6


def test_one_refused_send_is_taken_from_the_middle() -> None:
    pending = pending_of(send(0), send(1, 3), send(4))
    refused = pending.take_sequence(3)
    assert [each.sequence_id for each in refused] == [1]
    assert pending.take_sequence(9) == []
    assert [each.sequence_id for each in pending] == [0, 4]
    assert (pending.messages, pending.payload_bytes) == (2, 20)


def test_old_sends_are_taken_up_to_the_time() -> None:
    pending = pending_of(send(0, sent_at_s=1.0), send(1, sent_at_s=2.0), send(2, sent_at_s=3.0))
    assert [each.sequence_id for each in pending.take_older(2.0)] == [0, 1]
    assert (len(pending), pending.messages) == (1, 1)


def test_sends_out_of_order_break_an_invariant() -> None:
    with pytest.raises(AssertionError):
        pending_of(send(3), send(3))


def test_every_message_of_a_batch_learns_its_own_id() -> None:
    told: list[tuple[MessageId | None, SdkError | None]] = []
    batch = send(0, 3)
    batch.on_sent = [lambda i, e: told.append((i, e)), None, lambda i, e: told.append((i, e))]
    batch.finish(MessageId(1, 2, -1, 4), None)
    assert told == [(MessageId(1, 2, 0, 4), None), (MessageId(1, 2, 2, 4), None)]
    assert [each.batch_size for each, _ in told if each] == [3, 3]


def test_id_of_a_duplicate_is_minus_one() -> None:
    data = MessageIdData(ledgerId=(1 << 64) - 1, entryId=(1 << 64) - 1)
    receipt = CommandSendReceipt(producer_id=0, sequence_id=0, message_id=data)
    assert receipt_id(receipt, -1) == MessageId(-1, -1)


def test_a_message_in_chunks_has_the_ids_of_its_first_and_last_chunk() -> None:
    told: list[tuple[MessageId | None, SdkError | None]] = []
    encoder = MessageEncoder("t", ProducerSettings(chunking=True, chunk_bytes_max=4), None)
    encoder.attach(0, "p", b"", 1_000)
    sends = encoder.single(
        b"0123456789",
        b"",
        5,
        on_sent=lambda message_id, error: told.append((message_id, error)),
        sent_at_s=0.0,
        publish_time_ms=0,
    )
    assert len(sends) == 3
    for send, entry_id in zip(sends, (7, 9, 12), strict=True):
        send.finish(MessageId(3, entry_id, partition=2), None)
    ((message_id, error),) = told
    assert error is None
    assert message_id == MessageId(3, 12, partition=2)
    assert message_id is not None
    assert message_id.first_chunk == MessageId(3, 7, partition=2)
    assert MessageId.from_bytes(message_id.to_bytes()).first_chunk == message_id.first_chunk


def test_a_duplicate_in_chunks_has_no_first_chunk() -> None:
    chunked = ChunkedSend()
    assert chunked.stored(MessageId(-1, -1)).first_chunk is None
    assert chunked.stored(MessageId(-1, -1)).first_chunk is None
