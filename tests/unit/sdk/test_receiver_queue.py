"""Entries between the broker and the application, without either."""

from magnetar.sdk.ack_grouping import AckGrouping
from magnetar.sdk.batch import EntrySource, encode_plain_batch
from magnetar.sdk.receiver_queue import ReceiverQueue
from magnetar.sdk.wire.pulsar_pb2 import CommandMessage, MessageIdData, MessageMetadata


def test_credit_of_what_is_dropped_is_what_the_broker_charged() -> None:
    granted: list[int] = []

    def grant(messages: int) -> bool:
        granted.append(messages)
        return True

    source, acks = EntrySource("t"), AckGrouping(batch_index_ack=True)
    queue = ReceiverQueue(source, acks, messages_max=2, is_reader=False, grant=grant)
    metadata = MessageMetadata(
        producer_name="p", sequence_id=0, publish_time=1, num_messages_in_batch=4
    ).SerializeToString()
    payload = len(metadata).to_bytes(4, "big") + metadata + encode_plain_batch([b"a"] * 4, 0)
    place = MessageIdData(ledgerId=1, entryId=0)
    partly = CommandMessage(consumer_id=0, message_id=place, ack_set=[0b1000])
    queue.extend([(partly, payload), (CommandMessage(consumer_id=0, message_id=place), payload)])
    queue.drop()
    assert granted == [1 + 4]
