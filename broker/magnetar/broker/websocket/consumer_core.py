"""A consumer's or reader's session without its socket: credit, deliveries, frames of the client.
Pure.

Credit limits how many messages a client may be sent:

- *Push*: a window. A message that is sent takes a slot; its acknowledgement, positive or
  negative, frees it. A redelivered message takes no second slot.
- *Pull*: permits. Each message costs one; acknowledgements give none.
- *Reader*: a window whose slots any frame frees.

With an ack timeout, messages that were not answered in time are redelivered.

The receiver queue limits how many messages brokers may send ahead. It counts messages, and their
sizes are not known before they arrive: a thousand of five megabytes would fill the memory for a
client that reads nothing. So a consumer begins with a few. Each time it has taken that many, it
doubles the number, as long as the size of recent messages allows it.

Source: WebSocket sheet, sections 4 and 5.
"""

from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Final, Generic, TypeVar

from magnetar.broker.websocket.endpoint import ConsumerParameters, CryptoFailureAction
from magnetar.broker.websocket.frames import (
    CommandType,
    message_frame,
    parse_command,
    parse_reader_command,
)
from magnetar.sdk.message import Message
from magnetar.sdk.message_id import MessageId
from magnetar.sdk.settings import SubscriptionType

_PERMITS_MAX = (1 << 63) - 1

Key = TypeVar("Key", bound=Hashable)
"""Type of the identity of a session's message."""


class Credit(Generic[Key]):
    """Messages that one client may be sent. Times are in seconds of a monotonic clock."""

    def __init__(self, *, window: int, pull: bool, ack_timeout_s: float = 0.0) -> None:
        """In pull mode, `window` limits the messages that an ack timeout runs for."""
        assert window >= 1
        self._window = window
        self._pull = pull
        self._permits = 0
        self._ack_timeout_s = ack_timeout_s
        self._tracks = not pull or ack_timeout_s > 0
        # In the order of their times, because each entry gets the same timeout.
        self._unanswered: dict[Key, float] = {}

    @property
    def unanswered(self) -> int:
        """Number of messages that take a slot or have a running ack timeout."""
        return len(self._unanswered)

    @property
    def room(self) -> int:
        """Number of messages that may be sent now."""
        room = self._window - len(self._unanswered) if self._tracks else self._permits
        return min(room, self._permits) if self._pull else room

    def sent(self, keys: Iterable[Key], now_s: float) -> None:
        """Note that messages were sent; at most as many as there was room for."""
        count = 0
        for key in keys:
            count += 1
            if self._tracks:
                self._unanswered.pop(key, None)
                self._unanswered[key] = now_s + self._ack_timeout_s
        if self._pull:
            self._permits -= count

    def permit(self, count: int) -> None:
        """Add permits; no effect outside of pull mode."""
        if self._pull:
            self._permits = min(_PERMITS_MAX, self._permits + count)

    def answered(self, key: Key) -> bool:
        """Free a message's slot after an acknowledgement of either kind; return whether it had
        one."""
        return self._unanswered.pop(key, None) is not None

    @property
    def next_timeout_s(self) -> float | None:
        """Time of the next ack timeout; None if no timeout is running."""
        if not self._ack_timeout_s or not self._unanswered:
            return None
        return next(iter(self._unanswered.values()))

    def take_expired(self, now_s: float) -> list[Key]:
        """Remove and return the messages whose ack timeout is over; their slots are free."""
        expired: list[Key] = []
        for key, due_s in self._unanswered.items():
            if due_s > now_s:
                break
            expired.append(key)
        for key in expired:
            del self._unanswered[key]
        return expired


class ReaderWindow:
    """Slots of a reader; any frame frees one."""

    def __init__(self, window: int) -> None:
        assert window >= 1
        self._window = window
        self._taken = 0

    @property
    def room(self) -> int:
        return self._window - self._taken

    def sent(self, count: int) -> None:
        self._taken += count

    def free(self) -> None:
        """Free one slot after a frame. A window never has more slots than at first."""
        self._taken = max(0, self._taken - 1)


FIRST: Final = 8
"""Messages sent ahead before their size is known."""
_DECAY: Final = 8
"""Divisor of the decay. The mean size falls by at most an eighth of itself per take, so a large
message is remembered for some takes."""


class QueueSize:
    """Receiver queue size of one consumer, adapted to the size of its messages."""

    def __init__(self, *, messages_max: int, bytes_max: int, first: int = FIRST) -> None:
        assert messages_max >= 1
        self.messages = max(1, min(messages_max, first))
        """Messages that brokers may send ahead now."""
        self._messages_max = messages_max
        self._bytes_max = bytes_max
        self._mean_bytes = 1
        self._taken = 0

    def took(self, messages: int, size: int) -> bool:
        """Count messages taken, of `size` bytes together; return whether `messages` has changed."""
        mean = max(1, size // max(1, messages))
        self._mean_bytes = max(mean, self._mean_bytes - self._mean_bytes // _DECAY)
        fitting = max(1, min(self._messages_max, self._bytes_max // self._mean_bytes))
        self._taken += messages
        before = self.messages
        if fitting < before:
            self.messages = fitting
        elif self._taken >= before:
            self.messages = min(fitting, 2 * before)
        else:
            return False
        self._taken = 0
        return self.messages != before


class Ask(Enum):
    """Action of the shell on a frame."""

    ACKNOWLEDGE = "acknowledge"
    REDELIVER = "redeliver"
    UNSUBSCRIBE = "unsubscribe"
    TELL_END = "tell end"
    NOTHING = "nothing"


@dataclass(frozen=True, slots=True)
class Effect:
    """An action, with the message that it is for, if any."""

    ask: Ask
    message_id: MessageId | None = None


@dataclass(frozen=True, slots=True)
class Deliveries:
    """What to do with messages that were taken."""

    frames: list[bytes]
    payload_bytes: int
    """Bytes of the messages in `frames`."""
    sent: list[MessageId] = field(default_factory=list)
    """Ids of the messages in `frames`, for a consumer."""
    dead: list[Message] = field(default_factory=list)
    """Messages that were delivered too often and go to the dead letter topic."""
    discarded: list[Message] = field(default_factory=list)
    """Encrypted messages that the client does not want, to be acknowledged."""


class ConsumerCore:
    """Core of one consumer session."""

    def __init__(self, parameters: ConsumerParameters, *, unacknowledged_max: int) -> None:
        """`unacknowledged_max`: messages in pull mode that an ack timeout may run for."""
        window = unacknowledged_max if parameters.pull else max(1, parameters.queue_messages)
        self.credit: Credit[MessageId] = Credit(
            window=window, pull=parameters.pull, ack_timeout_s=parameters.ack_timeout_ms / 1000
        )
        # Only these types count deliveries.
        counts = parameters.subscription_type in (
            SubscriptionType.SHARED,
            SubscriptionType.KEY_SHARED,
        )
        self._redeliveries_max = parameters.redeliveries_max if counts else None
        self._on_encrypted = parameters.on_encrypted

    @property
    def room(self) -> int:
        """Number of messages that may be taken now."""
        return self.credit.room

    def deliver(self, messages: Sequence[Message], now_s: float) -> Deliveries:
        """Sort messages that were taken, at most as many as there was room for, and encode them."""
        most = self._redeliveries_max
        frames: list[bytes] = []
        sent: list[MessageId] = []
        dead: list[Message] = []
        discarded: list[Message] = []
        payload_bytes = 0
        for message in messages:
            if message.is_encrypted and self._on_encrypted is not CryptoFailureAction.CONSUME:
                # The broker has no keys. With FAIL, the message stays unacknowledged.
                if self._on_encrypted is CryptoFailureAction.DISCARD:
                    discarded.append(message)
                continue
            if most is not None and message.redelivery_count > most:
                dead.append(message)
                continue
            message_id = message.message_id
            sent.append(message_id)
            frames.append(message_frame(message, message_id, with_encryption=True))
            payload_bytes += len(message.data)
        self.credit.sent(sent, now_s)
        return Deliveries(frames, payload_bytes, sent, dead, discarded)

    def on_text(self, data: bytes) -> Effect:
        """Handle a frame of the client. Raises: BadFrameError: the session must end."""
        command = parse_command(data)
        match command.type:
            case CommandType.PERMIT:
                self.credit.permit(command.permits)
                return Effect(Ask.NOTHING)
            case CommandType.UNSUBSCRIBE:
                return Effect(Ask.UNSUBSCRIBE)
            case CommandType.IS_END_OF_TOPIC:
                return Effect(Ask.TELL_END)
        assert command.message_id is not None
        self.credit.answered(command.message_id)
        is_negative = command.type is CommandType.NEGATIVE_ACKNOWLEDGE
        return Effect(Ask.REDELIVER if is_negative else Ask.ACKNOWLEDGE, command.message_id)


class ReaderCore:
    """Core of one reader session. Messages sent count as read; the client only frees slots."""

    def __init__(
        self,
        *,
        queue_messages: int,
        on_encrypted: CryptoFailureAction = CryptoFailureAction.FAIL,
    ) -> None:
        self._takes_encrypted = on_encrypted is CryptoFailureAction.CONSUME
        self._window = ReaderWindow(max(1, queue_messages))

    @property
    def room(self) -> int:
        """Number of messages that may be taken now."""
        return self._window.room

    def deliver(
        self, messages: Sequence[Message], resume_id: Callable[[MessageId], MessageId]
    ) -> Deliveries:
        """Encode messages that were taken, at most as many as there was room for.

        A client continues behind a message by its id: `resume_id` returns the id to send.
        """
        wanted = [each for each in messages if self._takes_encrypted or not each.is_encrypted]
        self._window.sent(len(wanted))
        frames = [message_frame(each, resume_id(each.message_id)) for each in wanted]
        return Deliveries(frames, sum(len(each.data) for each in wanted))

    def on_text(self, data: bytes) -> Effect:
        """Handle a frame of the client. Raises: BadFrameError: the session must end."""
        if parse_reader_command(data).type is CommandType.IS_END_OF_TOPIC:
            return Effect(Ask.TELL_END)
        self._window.free()
        return Effect(Ask.NOTHING)
