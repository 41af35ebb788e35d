"""Messages collected into batches before they are sent. Pure; no I/O, no time.

By default there is one open batch. By key there is one for each ordering key (or key): a Key_Shared
subscription gives an entry to one consumer, so all its messages must have one key. In a segment of
a scalable topic with entry buckets, there is one for each bucket, and one for messages without a
key: brokers give the entries of a bucket to one consumer, and the entry names its hashes.

The limits hold for all open batches together. When one limit is reached, all batches are closed, in
the order in which they were opened. All collected messages are of one transaction, or of none: the
entry of a batch is committed or aborted as a whole.
"""

from bisect import bisect_right
from collections.abc import Sequence

from magnetar.sdk.batch import ITEM_HEADER_BYTES_MAX, encode_batch, encode_plain_batch
from magnetar.sdk.pending_sends import OnSent
from magnetar.sdk.producing.outgoing import (
    TransactionId,
    entry_hash_fields,
    entry_hash_of,
    outer_metadata,
    single_metadata,
)
from magnetar.sdk.wire.pulsar_pb2 import MessageMetadata


class OpenBatch:
    """Messages that will share an entry. `extras` and `on_sent` stay empty as long as none is
    needed."""

    __slots__ = ("_extras", "_first", "_hashes", "_on_sent", "payload_bytes", "payloads", "since_s")

    def __init__(self, first: MessageMetadata | None, since_s: float) -> None:
        self.payloads: list[bytes] = []
        self.payload_bytes = 0
        self.since_s = since_s
        """Monotonic time of the first message, in seconds."""
        self._first = first
        self._hashes: tuple[int, int] | None = None
        """Lowest and highest hash of the messages' keys; None if the entry names no hashes."""
        self._extras: list[bytes] = []
        self._on_sent: list[OnSent | None] = []

    def __len__(self) -> int:
        return len(self.payloads)

    def add(self, payload: bytes, raw: bytes, on_sent: OnSent | None) -> None:
        """Add a message. `raw`: its other metadata, see `single_metadata`."""
        count = len(self.payloads)
        self.payloads.append(payload)
        self.payload_bytes += len(payload)
        if raw or self._extras:
            self._extras += [b""] * (count - len(self._extras))
            self._extras.append(raw)
        if on_sent is not None or self._on_sent:
            self._on_sent += [None] * (count - len(self._on_sent))
            self._on_sent.append(on_sent)

    def reach(self, entry_hash: int) -> None:
        """Include the hash of a message's key."""
        low, high = self._hashes or (entry_hash, entry_hash)
        self._hashes = min(low, entry_hash), max(high, entry_hash)

    def body(self, first_sequence_id: int) -> bytes:
        """Return the entry's body, before compression."""
        if not self._extras:
            return encode_plain_batch(self.payloads, first_sequence_id)
        self._extras += [b""] * (len(self.payloads) - len(self._extras))
        return encode_batch(self.payloads, self._extras, first_sequence_id)

    @property
    def metadata(self) -> bytes:
        """Serialized metadata of the entry that describe its messages."""
        outer = b"" if self._first is None else outer_metadata(self._first)
        return outer if self._hashes is None else outer + entry_hash_fields(*self._hashes)

    @property
    def on_sent(self) -> Sequence[OnSent | None]:
        """One callback for each message; empty if there are none."""
        if self._on_sent:
            self._on_sent += [None] * (len(self.payloads) - len(self._on_sent))
        return self._on_sent


class BatchContainer:
    """Open batches of a producer."""

    def __init__(
        self,
        *,
        messages_max: int,
        bytes_max: int,
        by_key: bool,
        entry_buckets: Sequence[int] = (),
    ) -> None:
        """Create an empty container.

        `entry_buckets`: first hashes of all buckets but the first; empty for one bucket. Batches by
        key need no further division.
        """
        self.bytes_max = bytes_max
        """Most bytes of all open batches; lowered by the producer to the broker's limit."""
        self.messages = 0
        self.payload_bytes = 0
        self.transaction: TransactionId | None = None
        """Transaction of the collected messages; None if they are in none."""
        self._messages_max = messages_max
        self._by_key = by_key
        self._splits = () if by_key else entry_buckets
        self._taken_bytes = 0
        self._batches: dict[bytes | int, OpenBatch] = {}
        """Open batches by key, or by number of the bucket. The empty key has the messages without a
        key, or all."""

    def __len__(self) -> int:
        return self.messages

    @property
    def has_several(self) -> bool:
        """Whether several batches may be open at a time."""
        return self._by_key or bool(self._splits)

    def has_room(self, size: int, transaction: TransactionId | None = None) -> bool:
        """Whether a message of `size` bytes fits; an empty container takes any."""
        return not self.messages or (
            self._taken_bytes + size <= self.bytes_max and transaction == self.transaction
        )

    @property
    def is_full(self) -> bool:
        return self.messages >= self._messages_max or self._taken_bytes >= self.bytes_max

    def add(
        self,
        payload: bytes,
        extra: MessageMetadata | None,
        on_sent: OnSent | None,
        *,
        now_s: float,
        transaction: TransactionId | None = None,
    ) -> None:
        """Add a message, after `has_room`; the caller has taken the batches if there was none."""
        assert not self.messages or transaction == self.transaction
        self.transaction = transaction
        key: bytes | int = b""
        entry_hash = None
        if extra is not None and self._by_key:
            key = extra.ordering_key or extra.partition_key.encode()
        elif extra is not None and self._splits:
            entry_hash = entry_hash_of(extra)
            if entry_hash is not None:
                key = bisect_right(self._splits, entry_hash)
        batch = self._batches.get(key)
        if batch is None:
            batch = self._batches[key] = OpenBatch(extra, now_s)
        raw = b"" if extra is None else single_metadata(extra)
        batch.add(payload, raw, on_sent)
        if entry_hash is not None:
            batch.reach(entry_hash)
        self.messages += 1
        self.payload_bytes += len(payload)
        self._taken_bytes += len(payload) + len(raw) + ITEM_HEADER_BYTES_MAX

    def take(self) -> list[OpenBatch]:
        """Return all open batches, and forget them."""
        batches = list(self._batches.values())
        self._batches.clear()
        self.messages = self.payload_bytes = self._taken_bytes = 0
        return batches
