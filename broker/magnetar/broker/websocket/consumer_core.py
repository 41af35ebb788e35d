"""A consumer's or reader's session without its socket: what may be sent, what frames ask. Pure.

How many messages a client may be sent, and which it has not answered:

- *Push*: a window; a message that is sent takes a slot, and its acknowledgement, positive or
  negative, frees it. A message that comes again takes no second one.
- *Pull*: permits; each message costs one, and acknowledgements give nothing.
- *Reader*: a window whose slots any frame frees.

With an ack timeout, what was not answered in time is to be asked for again.

How many messages brokers may send ahead: credit counts messages, and nobody knows how large those
are that come: a thousand of five megabytes would wait here for a client that reads nothing. So a
consumer begins with a few, and has twice as many each time it has taken so many, as long as their
size says that they fit.

Source: WebSocket sheet, sections 4 and 5.
"""

from collections.abc import Hashable, Iterable, Sequence
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
"""What identifies a message of a session."""


class Credit(Generic[Key]):
    """Of one session. Times are in seconds of any clock that does not go back."""

    def __init__(self, *, window: int, pull: bool, ack_timeout_s: float = 0.0) -> None:
        """In pull mode `window` bounds what an ack timeout is waited for."""
        assert window >= 1
        self._window = window
        self._pull = pull
        self._permits = 0
        self._ack_timeout_s = ack_timeout_s
        self._tracks = not pull or ack_timeout_s > 0
        # In the order of their times: every entry gets the same timeout.
        self._unanswered: dict[Key, float] = {}

    @property
    def unanswered(self) -> int:
        """Messages that take a slot, or whose time runs."""
        return len(self._unanswered)

    @property
    def room(self) -> int:
        """How many messages may be sent now."""
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
        """The client allows more; without meaning outside of pull mode."""
        if self._pull:
            self._permits = min(_PERMITS_MAX, self._permits + count)

    def answered(self, key: Key) -> bool:
        """An acknowledgement of either kind; whether this session knew the message."""
        return self._unanswered.pop(key, None) is not None

    @property
    def next_timeout_s(self) -> float | None:
        """When the next message is to be asked for again."""
        if not self._ack_timeout_s or not self._unanswered:
            return None
        return next(iter(self._unanswered.values()))

    def take_expired(self, now_s: float) -> list[Key]:
        """The messages whose time is over; their slots are free."""
        expired: list[Key] = []
        for key, due_s in self._unanswered.items():
            if due_s > now_s:
                break
            expired.append(key)
        for key in expired:
            del self._unanswered[key]
        return expired


class ReaderWindow:
    """The slots of a reader: any frame frees one."""

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
        """A frame came; there are never more slots than the window has."""
        self._taken = max(0, self._taken - 1)


FIRST: Final = 8
"""Messages sent ahead before their size is known."""
_DECAY: Final = 8
"""A large message is remembered for some takes: the mean falls by an eighth of itself at most."""


class QueueSize:
    """Of one consumer."""

    def __init__(self, *, messages_max: int, bytes_max: int, first: int = FIRST) -> None:
        assert messages_max >= 1
        self.messages = max(1, min(messages_max, first))
        """How many may be sent ahead now."""
        self._messages_max = messages_max
        self._bytes_max = bytes_max
        self._mean_bytes = 1
        self._taken = 0

    def took(self, messages: int, size: int) -> bool:
        """So many were taken, of `size` bytes together; whether `messages` is another now."""
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
    """What the shell is to do for a frame."""

    ACKNOWLEDGE = "acknowledge"
    REDELIVER = "redeliver"
    UNSUBSCRIBE = "unsubscribe"
    TELL_END = "tell end"
    NOTHING = "nothing"


@dataclass(frozen=True, slots=True)
class Effect:
    """With the message it is about, if there is one."""

    ask: Ask
    message_id: MessageId | None = None


@dataclass(frozen=True, slots=True)
class Deliveries:
    """What becomes of messages that were taken."""

    frames: list[bytes]
    sent: list[MessageId] = field(default_factory=list)
    """To a consumer: what the frames hold."""
    dead: list[Message] = field(default_factory=list)
    """Messages that were delivered too often, and go to the dead letter topic."""
    discarded: list[Message] = field(default_factory=list)
    """Messages that are encrypted and unwanted: to be acknowledged."""


class ConsumerCore:
    """Of one consumer session."""

    def __init__(self, parameters: ConsumerParameters, *, unacknowledged_max: int) -> None:
        """`unacknowledged_max`: how many messages in pull mode an ack timeout runs for."""
        window = unacknowledged_max if parameters.pull else max(1, parameters.queue_messages)
        self.credit: Credit[MessageId] = Credit(
            window=window, pull=parameters.pull, ack_timeout_s=parameters.ack_timeout_ms / 1000
        )
        # Only these count how often a message was delivered.
        counts = parameters.subscription_type in (
            SubscriptionType.SHARED,
            SubscriptionType.KEY_SHARED,
        )
        self._redeliveries_max = parameters.redeliveries_max if counts else None
        self._on_encrypted = parameters.on_encrypted

    @property
    def room(self) -> int:
        """How many messages may be taken now."""
        return self.credit.room

    def deliver(self, messages: Sequence[Message], now_s: float) -> Deliveries:
        """Messages that were taken, at most as many as there was room for."""
        most = self._redeliveries_max
        deliveries = Deliveries([])
        frames, sent, dead = deliveries.frames, deliveries.sent, deliveries.dead
        for message in messages:
            if message.is_encrypted and self._on_encrypted is not CryptoFailureAction.CONSUME:
                # Nobody here has the keys. What is to fail stays unacknowledged.
                if self._on_encrypted is CryptoFailureAction.DISCARD:
                    deliveries.discarded.append(message)
                continue
            if most is not None and message.redelivery_count > most:
                dead.append(message)
                continue
            message_id = message.message_id
            sent.append(message_id)
            frames.append(message_frame(message, message_id, with_encryption=True))
        self.credit.sent(sent, now_s)
        return deliveries

    def on_text(self, data: bytes) -> Effect:
        """A frame of the client. Raises: BadFrameError: the session ends with it."""
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
    """Of one reader session. What it has sent is read: the client only frees slots."""

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
        """How many messages may be taken now."""
        return self._window.room

    def deliver(self, messages: Sequence[Message], now_s: float) -> Deliveries:
        """Messages that were taken, at most as many as there was room for."""
        wanted = [each for each in messages if self._takes_encrypted or not each.is_encrypted]
        self._window.sent(len(wanted))
        return Deliveries([message_frame(each, each.message_id) for each in wanted])

    def on_text(self, data: bytes) -> Effect:
        """A frame of the client. Raises: BadFrameError: the session ends with it."""
        if parse_reader_command(data).type is CommandType.IS_END_OF_TOPIC:
            return Effect(Ask.TELL_END)
        self._window.free()
        return Effect(Ask.NOTHING)
