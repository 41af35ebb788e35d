"""An entry as it goes from one cluster to another: its payload as it is. Pure.

A copy is told from other messages by `replicated_from`, and its place at the source is in the field
`magnetar_source`, as in copies between Magnetar clusters (`broker.features.replication`): the
target stores each copy once, in order, and knows from its own log how far it has come.
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
"""Of all sources. A topic that is deleted and made anew at the source gets ledgers with higher ids,
so its entries stay behind those of the former one."""

_REWRITTEN = ("replicated_from", "magnetar_source", "txnid_most_bits")


def source_of(cluster: str) -> Source:
    """Return under which name the target knows what comes from a cluster by migration. It differs
    from the cluster's own, so that copies by replication are told apart."""
    return Source(f"{cluster}.migrated", INCARNATION)


def producer_name(source: Source) -> str:
    """Return the name of the producer that brings the copies. It names no target: whatever the
    target calls itself, this is it."""
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
    """Return an entry of the source as it goes to the target.

    Args:
        metadata: of the entry.
        previous: the copy before it; `START`: it is the first.
        schema: version of the message's schema at the target; empty: it has none.

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
    """Return where an entry at the target has its place at the source; None: it is no copy of that
    source."""
    found: Copy | None = copy_in_entry(entry)
    if found is None or found.source != source:
        return None
    return found.place.position


class Credit:
    """How many messages a broker may send, so that about `bytes_max` are in memory. Pure.

    The protocol counts messages, not bytes; how large they are is learned from those that came.
    """

    FIRST = 16
    """Messages before anything is known of their size."""
    MESSAGES_MAX = 5_000

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._open = 0
        """Messages that were asked for and have not come. Below zero, as at the broker, when more
        have come: an entry is sent whole while any credit is left."""
        self._held = 0
        """Messages that have come and are not done."""
        self._messages = 0
        self._bytes = 0

    @property
    def window(self) -> int:
        """Messages that may be open and held together."""
        if not self._messages:
            return self.FIRST
        # Younger messages count more: a topic may change.
        size = max(1, self._bytes // self._messages)
        return max(1, min(self._bytes_max // size, self.MESSAGES_MAX, 4 * self._messages))

    def received(self, messages: int, size: int) -> None:
        """An entry has come."""
        self._open -= messages
        self._held += messages
        if self._messages >= 4 * self.MESSAGES_MAX:
            self._messages //= 2
            self._bytes //= 2
        self._messages += messages
        self._bytes += size

    def done(self, messages: int) -> None:
        """An entry is done with."""
        self._held -= messages

    def ask(self) -> int:
        """Return how many messages to ask for now; 0: none."""
        window = self.window
        wanted = window - self._open - self._held
        if wanted < max(1, window // 2):
            return 0
        self._open += wanted
        return wanted
