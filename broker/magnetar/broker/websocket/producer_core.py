"""A producer's session without its socket: frames become publishes, outcomes become answers. Pure.

Each publish gets one answer, in the order of completion. The core counts publishes in flight; at
its limits, the shell stops reading.

The hash of its key chooses a message's partition. A message without a key goes to the producer's
one partition, or to each partition in turn. Source: protocol sheet, section 14.
"""

from base64 import b64decode

from magnetar.broker.websocket.endpoint import HashingScheme, RoutingMode
from magnetar.broker.websocket.errors import BadFrameError, Code
from magnetar.broker.websocket.frames import (
    LONG_MAX,
    Publish,
    parse_publish,
    receipt_frame,
    send_error_frame,
)
from magnetar.sdk.errors import SdkError
from magnetar.sdk.message_id import MessageId
from magnetar.sdk.wire.key_hashes import java_string_hash, murmur3_hash
from magnetar.sdk.wire.pulsar_pb2 import KeyValue, MessageMetadata


class Router:
    """Chooses partitions for one producer."""

    def __init__(self, hashing: HashingScheme, routing: RoutingMode, *, first: int) -> None:
        """`first`: any number from 0 on; it chooses the first partition."""
        self._hash = _HASHES[hashing]
        self._turns = routing is RoutingMode.ROUND_ROBIN
        self._next = first
        self._single: int | None = None

    def choose(self, key: str | None, partitions: int) -> int:
        """Return the index of a partition, from 0 on."""
        if key is not None:
            return self._hash(key) % partitions
        if self._turns:
            chosen = self._next % partitions
            self._next += 1
            return chosen
        if self._single is None or self._single >= partitions:
            # It stays when partitions are added: the order of messages depends on it.
            self._single = self._next % partitions
        return self._single


def _murmur(text: str) -> int:
    return murmur3_hash(text.encode())


_HASHES = {HashingScheme.JAVA_STRING: java_string_hash, HashingScheme.MURMUR3: _murmur}


class ProducerCore:
    """Core of one producer session."""

    def __init__(self, *, messages_max: int, bytes_max: int) -> None:
        """Limits on publishes without an outcome; one read may exceed them by its own content."""
        self._messages_max, self._bytes_max = messages_max, bytes_max
        self._messages = self._bytes = 0
        self._answers: list[bytes] = []

    @property
    def under_way(self) -> int:
        """Number of publishes without an outcome."""
        return self._messages

    @property
    def is_full(self) -> bool:
        """Whether a limit on publishes without an outcome is reached."""
        return self._messages >= self._messages_max or self._bytes >= self._bytes_max

    def on_text(self, data: bytes) -> Publish | None:
        """Return the publish in a frame. None if the frame is invalid; the error is among the
        answers."""
        try:
            publish = parse_publish(data)
        except BadFrameError as error:
            self._answers.append(send_error_frame(error.code, error.text, error.context))
            return None
        self._messages += 1
        self._bytes += publish.held_bytes
        return publish

    def on_outcome(
        self, publish: Publish, message_id: MessageId | None, error: SdkError | None
    ) -> None:
        """Record that a publish was stored or failed."""
        self._messages -= 1
        self._bytes -= publish.held_bytes
        if message_id is not None:
            answer = receipt_frame(message_id, publish.context)
        else:
            answer = send_error_frame(
                Code.UNKNOWN, str(error) or Code.UNKNOWN.text, publish.context
            )
        self._answers.append(answer)

    def take_answers(self) -> list[bytes]:
        """Remove and return the frames to send, in order."""
        answers, self._answers = self._answers, []
        return answers


def sent_key(publish: Publish) -> str | bytes | None:
    """Return the key for a producer of the SDK. A key that claims to be base64 but is not counts as
    text."""
    if publish.key is None or not publish.key_is_base64:
        return publish.key
    try:
        return b64decode(publish.key, validate=True)
    except ValueError:
        return publish.key


def deliver_at_ms(publish: Publish, now_ms: int) -> int | None:
    """Return the delivery time in ms since the epoch; None for at once. A delay wins over a time,
    and ends at the latest time that the metadata of a message can hold."""
    if publish.deliver_after_ms is not None:
        return min(now_ms + publish.deliver_after_ms, LONG_MAX)
    return publish.deliver_at_ms


def encoded_metadata(publish: Publish, due_ms: int | None) -> MessageMetadata:
    """Return the metadata of a message whose payload its client has encoded."""
    return MessageMetadata(
        partition_key=publish.key,
        partition_key_b64_encoded=publish.key_is_base64 or None,
        null_value=publish.is_null or None,
        properties=[KeyValue(key=k, value=v) for k, v in (publish.properties or {}).items()],
        event_time=publish.event_time_ms,
        deliver_at_time=due_ms,
        replicate_to=publish.replicate_to,
    )
