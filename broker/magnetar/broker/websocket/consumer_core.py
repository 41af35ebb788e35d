"""A consumer's or reader's session without its socket: what may be sent, what frames ask. Pure.

Source: WebSocket sheet, sections 4 and 5.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum

from magnetar.broker.websocket.credit import Credit, ReaderWindow
from magnetar.broker.websocket.frames import (
    CommandType,
    message_frame,
    parse_command,
    parse_reader_command,
)
from magnetar.broker.websocket.parameters import ConsumerParameters, CryptoFailureAction
from magnetar.sdk.message import Message
from magnetar.sdk.message_id import MessageId
from magnetar.sdk.settings import SubscriptionType


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
    """They came too often, and go to the dead letter topic."""
    discarded: list[Message] = field(default_factory=list)
    """They are encrypted and unwanted: to be acknowledged."""


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
