"""An entry on its way from one cluster to another, with its payload unchanged. Pure.

`replicated_from` marks a copy, and the field `magnetar_source` holds its place at the source, as in
copies between Magnetar clusters (`broker.features.replication`). So the target stores each copy
once, in order, and its own log shows how far the copy has come.
"""

from magnetar.broker.features.replication.copies import Copy, copy_in_entry
from magnetar.broker.features.replication.source_marks import START, Source
from magnetar.ledger.position import Position
from magnetar.sdk.wire import (
    MessageMetadata,
    encode_payload,
    extend_metadata,
    split_payload,
)
from magnetar.sdk.wire.pulsar_pb2 import SourcePosition

INCARNATION = 1
"""Incarnation of all sources. A topic that is deleted and created anew at the source gets ledgers
with higher ids, so its entries come after those of the former one."""

_REWRITTEN = ("replicated_from", "magnetar_source", "txnid_most_bits")


def source_of(cluster: str) -> Source:
    """Return the name of a migrated cluster as a source of copies. It differs from the cluster's
    own name, so that copies by replication stay distinct."""
    return Source(f"{cluster}.migrated", INCARNATION)


def producer_name(source: Source) -> str:
    """Return the name of the producer that sends the copies. It does not contain the target's name,
    so it is the same for every target."""
    return f"pulsar.repl.{source.cluster}"


def entry_to_send(
    entry: bytes,
    metadata: MessageMetadata,
    source: Source,
    position: Position,
    previous: Position,
    *,
    schema: bytes,
) -> bytes:
    """Return an entry of the source in the form for the target.

    Args:
        metadata: of the entry.
        previous: the previous copy; `START` if this is the first.
        schema: version of the message's schema at the target; empty if it has none.

    Raises:
        MalformedPayloadError: the entry is truncated.
    """
    place = SourcePosition(
        incarnation=source.incarnation,
        ledger_id=position.ledger_id,
        entry_id=position.entry_id,
    )
    if previous != START:
        place.previous_ledger_id, place.previous_entry_id = previous
    added = MessageMetadata(replicated_from=source.cluster, magnetar_source=place)
    is_same = schema == metadata.schema_version
    if is_same and not any(metadata.HasField(field) for field in _REWRITTEN):
        return extend_metadata(entry, added)
    changed = MessageMetadata()
    changed.CopyFrom(metadata)
    for field in (*_REWRITTEN, "txnid_least_bits", "schema_version"):
        changed.ClearField(field)
    if schema:
        changed.schema_version = schema
    changed.MergeFrom(added)
    _, body_at = split_payload(entry)
    return encode_payload(changed.SerializeToString(), entry[body_at:])


def copy_of(entry: bytes, source: Source) -> Position | None:
    """Return the place at the source of an entry at the target; None if it is no copy of that
    source."""
    found: Copy | None = copy_in_entry(entry)
    if found is None or found.source != source:
        return None
    return found.place.position


class Credit:
    """Number of messages that a broker may send, so that about `bytes_max` are in memory. Pure.

    The protocol counts messages, not bytes; their size is estimated from those that have arrived.
    """

    FIRST = 16
    """Messages to request before their size is known."""
    MESSAGES_MAX = 5_000

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._open = 0
        """Messages that were requested and have not arrived. Below zero, as at the broker, when
        more have arrived: an entry is sent whole while any credit is left."""
        self._held = 0
        """Messages that have arrived and are not processed."""
        self._messages = 0
        self._bytes = 0

    @property
    def window(self) -> int:
        """Most messages that may be requested and held at the same time."""
        if not self._messages:
            return self.FIRST
        # Recent messages count more: the size of a topic's messages may change.
        size = max(1, self._bytes // self._messages)
        return max(1, min(self._bytes_max // size, self.MESSAGES_MAX, 4 * self._messages))

    def received(self, messages: int, size: int) -> None:
        """Count an entry that has arrived."""
        self._open -= messages
        self._held += messages
        if self._messages >= 4 * self.MESSAGES_MAX:
            self._messages //= 2
            self._bytes //= 2
        self._messages += messages
        self._bytes += size

    def done(self, messages: int) -> None:
        """Count an entry as processed."""
        self._held -= messages

    def ask(self) -> int:
        """Return how many messages to request now; 0 for none."""
        window = self.window
        wanted = window - self._open - self._held
        if wanted < max(1, window // 2):
            return 0
        self._open += wanted
        return wanted
