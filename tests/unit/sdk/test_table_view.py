"""Table view: what it keeps in memory of the messages that it has read."""

import asyncio
import gc
import tracemalloc
from typing import cast

from magnetar.sdk.batch import EntrySource, MessageBatch, encode_batch
from magnetar.sdk.message import Message
from magnetar.sdk.reader import Reader
from magnetar.sdk.settings import ReaderSettings
from magnetar.sdk.table_view import TableView
from magnetar.sdk.wire import MessageMetadata
from magnetar.sdk.wire.pulsar_pb2 import SingleMessageMetadata

KEYS = 100
VALUE_BYTES = 1_000
SOURCE = EntrySource("persistent://public/default/prices", partition=3, verify_checksum=False)


def batch_of(entry_id: int) -> MessageBatch:
    """Return a batch of 200 messages: one of a key of its own, the others of a common key."""
    keys = [f"own-{entry_id}", *["common"] * 199]
    extras = [SingleMessageMetadata(partition_key=key).SerializePartialToString() for key in keys]
    body = encode_batch([bytes(VALUE_BYTES)] * len(keys), extras, 0)
    metadata = MessageMetadata(
        producer_name="p", sequence_id=0, publish_time=5, num_messages_in_batch=len(keys)
    ).SerializeToString()
    return MessageBatch(len(metadata).to_bytes(4, "big") + metadata + body, SOURCE, 1, entry_id)


class BatchReader:
    """A reader of a topic that ends with `KEYS` batches, of which it makes one after the other."""

    topic = SOURCE.topic

    def __init__(self) -> None:
        self._read = 0

    async def has_message_available(self) -> bool:
        return self._read < KEYS

    async def read_many(self, _: int, *, timeout_s: float | None = None) -> list[Message]:
        if self._read == KEYS:
            await asyncio.Event().wait()
        self._read += 1
        return batch_of(self._read).messages()

    async def close(self) -> None:
        """Nothing is open."""


async def test_a_view_of_many_keys_keeps_their_values_and_not_their_batches() -> None:
    async def open_reader(settings: ReaderSettings) -> Reader:
        return cast(Reader, BatchReader())

    view = TableView(open_reader, ReaderSettings(), changes_max=1)
    gc.collect()
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        await view.start()
        gc.collect()
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(view) == KEYS + 1
    assert after - before <= 3 * KEYS * VALUE_BYTES
    message, received = view.message("own-7"), batch_of(7).messages()[0]
    assert message is not None
    assert (message.data, message.message_id) == (received.data, received.message_id)
    assert (message.topic, message.publish_time_ms, message.batch_size) == (SOURCE.topic, 5, 200)
    await view.close()
