"""The parts of a consumer of one topic, without its broker; and entries for them."""

from magnetar.sdk.ack_grouping import AckGrouping
from magnetar.sdk.batch import EntrySource, encode_plain_batch
from magnetar.sdk.consuming.entry_opening import EntryOpening
from magnetar.sdk.receiver_queue import Delivery, ReceiverQueue
from magnetar.sdk.settings import ConsumerSettings
from magnetar.sdk.wire.frames import encode_payload
from magnetar.sdk.wire.pulsar_pb2 import CommandMessage, MessageIdData, MessageMetadata

Entries = list[tuple[int, int]]


class Scene:
    """Queue, acknowledgements and opening of entries."""

    def __init__(self, settings: ConsumerSettings, *, is_reader: bool = False) -> None:
        source = EntrySource("persistent://public/default/t")
        self.acks = AckGrouping(batch_index_ack=False)
        self.queue = ReceiverQueue(
            source, self.acks, messages_max=1_000, is_reader=is_reader, grant=lambda _: True
        )
        self.acknowledged: Entries = []
        self.asked_later: Entries = []
        self.opening = EntryOpening(
            source,
            settings,
            acks=self.acks,
            giver=None,  # type: ignore[arg-type]  # Nothing is given up here.
            letters=None,
            has_waited=self.queue.has_waited,
            is_empty=lambda: not self.queue.has_some,
            acknowledge=self.acknowledged.extend,
            ask_later=self.asked_later.extend,
        )
        self.queue.open_entry = self.opening.open
        self.queue.on_cleared = self.opening.chunks.clear

    def take(self) -> bytes | None:
        message = self.queue.take()
        return None if message is None else message.data


def plain(entry: int, data: bytes, *, published_s: float = 0) -> Delivery:
    metadata = MessageMetadata(producer_name="p", sequence_id=0)
    return _delivery(entry, metadata, data, published_s)


def chunk(entry: int, uuid: str, index: int, data: bytes, of: int = 2) -> Delivery:
    metadata = MessageMetadata(
        producer_name="p",
        sequence_id=0,
        uuid=uuid,
        chunk_id=index,
        num_chunks_from_msg=of,
        total_chunk_msg_size=of * len(data),
    )
    return _delivery(entry, metadata, data)


def batch(entry: int, payloads: list[bytes]) -> Delivery:
    metadata = MessageMetadata(
        producer_name="p", sequence_id=0, num_messages_in_batch=len(payloads)
    )
    return _delivery(entry, metadata, encode_plain_batch(payloads, 0))


def _delivery(
    entry: int, metadata: MessageMetadata, data: bytes, published_s: float = 0
) -> Delivery:
    metadata.publish_time = 1 + int(published_s * 1000)
    place = MessageIdData(ledgerId=7, entryId=entry)
    payload = encode_payload(metadata.SerializeToString(), data)
    return CommandMessage(consumer_id=0, message_id=place), payload
