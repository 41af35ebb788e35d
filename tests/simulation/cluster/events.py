"""What happens in a cluster of brokers, beside what `history.py` has for ledgers."""

from typing import NamedTuple

Place = tuple[int, int]
"""Ledger and entry."""


class Spoke(NamedTuple):
    """A frame of the binary protocol left `source`."""

    connection: int
    source: str
    target: str
    command: str
    """Name of the command, or SUBSCRIBED for the SUCCESS that answers a SUBSCRIBE."""
    topic: str
    subscription: str
    handle: int
    """Id of the producer or consumer; -1 if the frame is about neither."""
    places: tuple[Place, ...]
    """Of SEND_RECEIPT, MESSAGE and ACK: the entries."""
    note: str

    def __str__(self) -> str:
        parts = [self.command]
        if self.topic:
            parts.append(short(self.topic) + (f"/{self.subscription}" if self.subscription else ""))
        if self.handle >= 0:
            parts.append(f"#{self.handle}")
        parts += [f"{ledger}:{entry}" for ledger, entry in self.places]
        if self.note:
            parts.append(self.note)
        return f"{self.source} => {self.target}  {' '.join(parts)}"


def short(topic: str) -> str:
    """The last part of a topic's name; with its namespace, if that is not the usual one."""
    namespace, _, name = topic.rpartition("/")
    _, _, namespace = namespace.rpartition("/")
    return name if namespace in ("", "default") else f"{namespace}/{name}"


class Detached(NamedTuple):
    """A broker's end of a connection is gone, and with it what was attached there."""

    connection: int
    broker: str

    def __str__(self) -> str:
        return f"the connection {self.connection} is gone"


class NodeWrote(NamedTuple):
    """The metadata store wrote a node that is no ledger's, for the actor; None: it is deleted."""

    path: str
    version: int
    value: bytes | None

    def __str__(self) -> str:
        if self.value is None:
            return f"DELETED {self.path}"
        text = self.value[:160].decode(errors="replace")
        return f"WROTE v{self.version} {self.path} {text}"


class ObjectPut(NamedTuple):
    """An object appeared in the store, for the actor."""

    key: str
    data: bytes
    put: int
    """Number of the call: no two calls may write one key."""

    def __str__(self) -> str:
        return f"PUT {self.key} {len(self.data)} bytes"


class ObjectRotted(NamedTuple):
    """An object in the store is another one now, by no request."""

    key: str
    data: bytes

    def __str__(self) -> str:
        return f"ROTTED {self.key}"


class ObjectGone(NamedTuple):
    """An object left the store: deleted, or lost by a fault of it."""

    key: str

    def __str__(self) -> str:
        return f"GONE {self.key}"


class Published(NamedTuple):
    """The application gave a message to a producer."""

    producer: str
    topic: str
    payload: bytes

    def __str__(self) -> str:
        return f"publishes {self.payload!r} to {short(self.topic)}"


class Confirmed(NamedTuple):
    """The application heard that the message is stored."""

    producer: str
    topic: str
    payload: bytes
    ledger_id: int
    entry_id: int
    batch_index: int

    def __str__(self) -> str:
        return (
            f"CONFIRMED {self.payload!r} in {short(self.topic)} at {self.ledger_id}:{self.entry_id}"
            + (f":{self.batch_index}" if self.batch_index >= 0 else "")
        )


class PublishFailed(NamedTuple):
    """The application heard that nobody knows about the message."""

    producer: str
    topic: str
    payload: bytes
    error: str

    def __str__(self) -> str:
        return f"publish failed {self.payload!r}: {self.error}"


class Got(NamedTuple):
    """The application took a message."""

    consumer: str
    topic: str
    subscription: str
    """Empty for a reader."""
    ledger_id: int
    entry_id: int
    batch_index: int
    payload: bytes

    def __str__(self) -> str:
        return (
            f"{self.consumer} got {self.ledger_id}:{self.entry_id} of {short(self.topic)}"
            f"/{self.subscription}: {self.payload!r}"
        )


class AckCalled(NamedTuple):
    """The application acknowledged a message, or everything up to it."""

    consumer: str
    topic: str
    subscription: str
    ledger_id: int
    entry_id: int
    is_cumulative: bool

    def __str__(self) -> str:
        kind = "up to " if self.is_cumulative else ""
        return f"{self.consumer} acknowledges {kind}{self.ledger_id}:{self.entry_id}"


class CursorSaved(NamedTuple):
    """A broker heard that a state of a cursor is durable in a cursor ledger."""

    log_path: str
    subscription: str
    ledger_id: int
    mark_delete: Place
    ranges: tuple[tuple[int, int, int], ...]
    properties: tuple[tuple[str, int], ...] = ()

    def __str__(self) -> str:
        return (
            f"saved {self.subscription} in L{self.ledger_id}: up to {self.mark_delete}, "
            f"{list(self.ranges)}" + (f", {dict(self.properties)}" if self.properties else "")
        )


class Calm(NamedTuple):
    """Nothing happens in this run but what is done in order: moves, stops, consumers that go."""

    def __str__(self) -> str:
        return "nothing goes wrong in this run"


class Dropped(NamedTuple):
    """A broker gave a topic up that has another owner, or may have one."""

    topic: str

    def __str__(self) -> str:
        return f"drops {short(self.topic)}"


class Closing(NamedTuple):
    """A broker begins to close a topic; what its cursors have in memory."""

    topic: str
    cursors: tuple[tuple[str, Place, tuple[Place, ...]], ...]
    """Name, mark-delete position, entries behind that which are acknowledged."""

    def __str__(self) -> str:
        return f"closes {short(self.topic)}: {list(self.cursors)}"


class Closed(NamedTuple):
    """The end of what `Closing` or `Dropped` began."""

    topic: str

    def __str__(self) -> str:
        return f"has closed {short(self.topic)}"


class Kept(NamedTuple):
    """In the end, an entry of a topic and its messages."""

    topic: str
    ledger_id: int
    entry_id: int
    messages: tuple[bytes, ...]

    def __str__(self) -> str:
        return f"{short(self.topic)} keeps {self.ledger_id}:{self.entry_id} {self.messages}"


class Unreadable(NamedTuple):
    """In the end, the log of a topic could not be read from here on."""

    topic: str
    error: str

    def __str__(self) -> str:
        return f"{short(self.topic)} cannot be read: {self.error}"


class Backlog(NamedTuple):
    """What the owner of a topic counts as not acknowledged, when nothing moves any more."""

    topic: str
    subscription: str
    entries: int
    acked: tuple[Place, ...]
    """Entries of the log that its cursor has as acknowledged."""

    def __str__(self) -> str:
        return f"backlog of {short(self.topic)}/{self.subscription}: {self.entries}"


class Stopped(NamedTuple):
    """A broker, or a process of auto-recovery, ended in order; how long it took."""

    seconds: float

    def __str__(self) -> str:
        return f"stopped within {self.seconds:.3f} s"


ClusterEvent = (
    Spoke
    | Detached
    | NodeWrote
    | ObjectPut
    | ObjectGone
    | ObjectRotted
    | Published
    | Confirmed
    | PublishFailed
    | Got
    | AckCalled
    | CursorSaved
    | Calm
    | Dropped
    | Closing
    | Closed
    | Kept
    | Unreadable
    | Backlog
    | Stopped
)
