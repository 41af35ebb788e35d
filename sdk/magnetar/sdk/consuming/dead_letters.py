"""Dead letter and retry topics, for messages redelivered too often or to be retried later.

Names of topics and properties are those of the official clients. Consumers of both kinds can
therefore share a subscription, and the official tools can read its dead letters:

| property | meaning |
|---|---|
| `REAL_TOPIC` | topic that the message came from |
| `ORIGIN_MESSAGE_ID` | its id there, `ledger:entry:partition[:batch index]` |
| `REAL_SUBSCRIPTION` | subscription whose consumer gave it up |
| `RECONSUMETIMES` | how often it was postponed |
| `DELAY_TIME` | the last delay, in ms |

An entry is redelivered whenever one of its messages is negatively acknowledged. Messages in flight
come even if they were acknowledged meanwhile. So one message may come too often several times.
`LettersOnce` remembers which messages have a dead letter, stored or pending. A message that it has
forgotten, or that another consumer gave up, may get a second dead letter.
"""

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from typing import Any, Protocol

from magnetar.sdk.ack_grouping import ALL_MESSAGES
from magnetar.sdk.consuming.message_copies import MessageCopies
from magnetar.sdk.context import ClientContext
from magnetar.sdk.errors import SdkError
from magnetar.sdk.message import Message
from magnetar.sdk.message_id import MessageId
from magnetar.sdk.settings import DeadLetterPolicy
from magnetar.sdk.wire.topic_name import TopicName

_log = logging.getLogger("magnetar.sdk")

REAL_TOPIC = "REAL_TOPIC"
REAL_SUBSCRIPTION = "REAL_SUBSCRIPTION"
ORIGIN_MESSAGE_ID = "ORIGIN_MESSAGE_ID"
RECONSUMETIMES = "RECONSUMETIMES"
DELAY_TIME = "DELAY_TIME"

RETRIES_MAX = 16
"""How often a message may be postponed without a policy, as with the official clients."""

LETTERS_REMEMBERED_MAX = 10_000
"""Entries remembered because messages of them have dead letters; at this bound the oldest is
forgotten."""


class LettersOnce:
    """Dead letters of one consumer, over all its topics: ledger ids are unique among them."""

    def __init__(self) -> None:
        self._under_way: dict[MessageId, Message] = {}
        """Messages whose dead letters are being stored, as delivered last."""
        self._stored: OrderedDict[tuple[int, int], int] = OrderedDict()
        """Bit mask of the messages of each entry that have dead letters."""

    def sort(
        self, messages: Iterable[Message[Any]]
    ) -> tuple[list[Message[Any]], list[Message[Any]]]:
        """Sort messages that came too often: return those to store now, and those already stored,
        which only need an acknowledgement. The others are being stored, and share that outcome."""
        wanted, done = [], []
        for message in messages:
            message_id = message.message_id
            if message_id in self._under_way:
                self._under_way[message_id] = message
            elif self._stored.get(_entry_of(message_id), 0) & _bit_of(message_id):
                done.append(message)
            else:
                self._under_way[message_id] = message
                wanted.append(message)
        return wanted, done

    def stored(self, message: Message[Any]) -> None:
        """Note that the message's dead letter is stored."""
        message_id = message.message_id
        self._under_way.pop(message_id, None)
        entry = _entry_of(message_id)
        self._stored[entry] = self._stored.pop(entry, 0) | _bit_of(message_id)
        if len(self._stored) > LETTERS_REMEMBERED_MAX:
            self._stored.popitem(last=False)

    def failed(self, message: Message[Any]) -> Message[Any]:
        """Record that no dead letter was stored; return the message as delivered last, for its
        redelivery."""
        return self._under_way.pop(message.message_id, message)

    @property
    def has_stored(self) -> bool:
        """Whether any dead letter is remembered, which `delivered` may forget."""
        return bool(self._stored)

    def delivered(self, ledger_id: int, entry_id: int) -> None:
        """Forget an entry that was delivered again without being given up: its count began anew,
        for example after a seek."""
        if self._stored:
            self._stored.pop((ledger_id, entry_id), None)


def _entry_of(message_id: MessageId) -> tuple[int, int]:
    return message_id.ledger_id, message_id.entry_id


def _bit_of(message_id: MessageId) -> int:
    return ALL_MESSAGES if message_id.batch_index < 0 else 1 << message_id.batch_index


class Giver(Protocol):
    """The consumer that gives a message up."""

    def acknowledge(self, what: Message[Any]) -> object: ...

    def negative_acknowledge(self, what: Message[Any]) -> object: ...


class DeadLetters:
    """Dead letter and retry topics of one consumer, for all its topics."""

    def __init__(
        self,
        context: ClientContext,
        topic: TopicName,
        subscription: str,
        policy: DeadLetterPolicy | None,
        *,
        has_schema: bool = False,
    ) -> None:
        """Take the consumer's topic and policy.

        `topic`: the consumer's first topic, after which the dead letter and retry topics are named.
        `has_schema`: whether the consumer decodes values by a schema.
        """
        self._context = context
        self._subscription = subscription
        self._policy = policy or DeadLetterPolicy(redeliveries_max=RETRIES_MAX)
        self._base = topic.partitioned
        self._copies = MessageCopies(lambda _: context.client, needs_schema=has_schema)
        self._tasks: set[asyncio.Task[None]] = set()
        self._once = LettersOnce()
        self.given_up = 0
        """Messages sent to the dead letter topic."""

    @property
    def redeliveries_max(self) -> int:
        return self._policy.redeliveries_max

    @property
    def retry_topic(self) -> TopicName:
        """Topic of messages that are postponed.

        Raises:
            TopicNameError: the policy names no valid topic.
        """
        return TopicName.parse(
            self._policy.retry_topic or f"{self._base}-{self._subscription}-RETRY"
        )

    def dead_letter_topic(self, source: TopicName) -> TopicName:
        """Return the dead letter topic for messages from `source`.

        Raises:
            TopicNameError: the policy names no valid topic.
        """
        if self._policy.topic:
            return TopicName.parse(self._policy.topic)
        source = source.partitioned
        base = self._base if source == self.retry_topic else source
        return TopicName.parse(f"{base}-{self._subscription}-DLQ")

    # -- given up

    def put(self, giver: Giver, messages: Iterable[Message[Any]]) -> None:
        """Store messages in the dead letter topic; those that cannot be stored are redelivered."""
        wanted, done = self._once.sort(messages)
        for message in done:
            giver.acknowledge(message)
        if wanted:
            task = asyncio.create_task(self._put(giver, wanted), name="magnetar dead letters")
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    def delivered(self, ledger_id: int, entry_id: int) -> None:
        """Record the delivery of an entry that is not given up."""
        self._once.delivered(ledger_id, entry_id)

    async def _put(self, giver: Giver, messages: list[Message[Any]]) -> None:
        for message in messages:
            try:
                await self._store(message, self._properties(message))
            except SdkError as error:
                _log.warning("dead_letter_failed %s: %s", message, error)
                giver.negative_acknowledge(self._once.failed(message))
            else:
                self._once.stored(message)
                giver.acknowledge(message)

    async def _store(self, message: Message[Any], properties: dict[str, str]) -> None:
        await self._copies.store(
            message,
            self.dead_letter_topic(TopicName.parse(message.topic)),
            properties,
            initial_subscription=self._policy.initial_subscription,
        )
        self.given_up += 1

    # -- postponed

    async def retry_later(
        self,
        message: Message[Any],
        *,
        delay_s: float,
        properties: Mapping[str, str] | None,
    ) -> None:
        """Store a message in the retry topic, or in the dead letter topic after too many retries.

        Raises:
            SdkError: no broker confirmed that the message is stored.
        """
        own = self._properties(message)
        own.update(properties or {})
        times = _number(message.properties.get(RECONSUMETIMES)) + 1
        delay_ms = max(0, round(delay_s * 1000))
        own |= {RECONSUMETIMES: str(times), DELAY_TIME: str(delay_ms)}
        if times > self.redeliveries_max:
            await self._store(message, own)
            return
        due_ms = self._context.clock.wall_ms() + delay_ms if delay_ms else None
        await self._copies.store(message, self.retry_topic, own, deliver_at_ms=due_ms)

    async def close(self) -> None:
        """Cancel pending dead letters, whose messages stay unacknowledged. Does not raise."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._copies.close()

    # -- parts

    def _properties(self, message: Message[Any]) -> dict[str, str]:
        return {
            REAL_TOPIC: str(TopicName.parse(message.topic).partitioned),
            ORIGIN_MESSAGE_ID: _id_text(message.message_id),
            REAL_SUBSCRIPTION: self._subscription,
            **message.properties,
        }


def _id_text(message_id: MessageId) -> str:
    """Return the id as the official clients write it, with the partition even if it is -1."""
    text = f"{message_id.ledger_id}:{message_id.entry_id}:{message_id.partition}"
    return text if message_id.batch_index < 0 else f"{text}:{message_id.batch_index}"


def _number(text: str | None) -> int:
    try:
        return max(0, int(text or 0))
    except ValueError:
        return 0  # another application's property of this name
