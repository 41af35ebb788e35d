"""Offsets: how far each topic was read, and how users write such positions. Pure.

An offset is the *last* entry that was read, as "ledger:entry"; "-1:-1" is before the first. With a
batch index, "ledger:entry:partition:index", it ends within a batch; only users write such offsets.
Users name messages: `startingOffsets` is the first to read, `endingOffsets` the last one.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field

from magnetar.arrow.stored.errors import OffsetError
from magnetar.sdk.errors import SdkError
from magnetar.sdk.message_id import MessageId
from magnetar.sdk.scalable.names import LayoutName, is_scalable_name
from magnetar.sdk.wire.errors import TopicNameError
from magnetar.sdk.wire.topic_name import TopicName

BEFORE_FIRST = MessageId(-1, -1)

_WHOLE = 1 << 31
"""Exceeds every index in a batch."""

_FORM = "it is ledger:entry, or ledger:entry:partition:batch-index"


@dataclass(frozen=True)
class StartingOffsets:
    """`earliest`, `latest`, or a position for each topic."""

    word: str = ""
    """Word for all topics; empty if `topics` names some."""
    topics: Mapping[str, MessageId] = field(default_factory=dict)
    """Positions by topic; MessageId.EARLIEST and LATEST represent the words."""

    def of(self, topic: str) -> MessageId | None:
        """Return the position of a topic; None if it has none."""
        if self.word:
            return MessageId.EARLIEST if self.word == "earliest" else MessageId.LATEST
        return self.topics.get(topic)


def parse_offsets(text: str) -> StartingOffsets:
    """Parse a user's text: a word, or JSON.

    Raises:
        OffsetError: the text is neither.
    """
    if text.lower() in ("earliest", "latest"):
        return StartingOffsets(text.lower())
    try:
        found = json.loads(text)
    except ValueError as error:
        raise OffsetError(
            f"{text[:100]!r} is not allowed; it is earliest, latest, or JSON as "
            f'{{"persistent://public/default/t": "12:0"}} ({error})'
        ) from None
    if not isinstance(found, dict) or not found:
        raise OffsetError("it is an object with a message id for each topic")
    topics: dict[str, MessageId] = {}
    for name, value in found.items():
        try:
            topic = full_name(name)
        except TopicNameError as error:
            raise OffsetError(str(error)) from None
        if isinstance(value, list):
            value = _hexadecimal(name, value)
        if not isinstance(value, str):
            raise OffsetError(f"{name}: {value!r} is not a message id; {_FORM}")
        if value.lower() in ("earliest", "latest"):
            is_earliest = value.lower() == "earliest"
            topics[topic] = MessageId.EARLIEST if is_earliest else MessageId.LATEST
        elif is_scalable_name(topic):
            raise OffsetError(
                f"{topic}: of a scalable topic it is earliest or latest; give message ids for its "
                "segments, by their names as in column __topic"
            )
        else:
            topics[topic] = _user_id(name, value)
    return StartingOffsets("", topics)


def full_name(name: str) -> str:
    """Return the name that offsets use for a topic, a partition, a segment or a whole scalable
    topic.

    Raises:
        TopicNameError
    """
    return str(LayoutName.parse(name) if is_scalable_name(name) else TopicName.parse(name))


def _hexadecimal(name: str, numbers: list[object]) -> str:
    """Return a message id as hexadecimal, from the numbers that the Pulsar connector for Spark
    writes.

    They are the bytes in JSON; those above 127 may be negative.
    """
    if not all(type(each) is int and -128 <= each <= 255 for each in numbers):
        raise OffsetError(f"{name}: {numbers!r:.100} are not the bytes of a message id; {_FORM}")
    return bytes(int(str(each)) & 255 for each in numbers).hex()


def _user_id(name: str, value: str) -> MessageId:
    try:
        made = parse_id(value)
    except OffsetError:
        try:  # the bytes of a message id, as __messageId has them, in hexadecimal
            made = MessageId.from_bytes(bytes.fromhex(value))
        except (SdkError, ValueError):
            raise OffsetError(f"{name}: {value[:100]!r} is not a message id; {_FORM}") from None
    if made.ledger_id < 0 or made.entry_id < 0:
        raise OffsetError(f"{name}: {value[:100]!r} names no message; {_FORM}")
    return made


def parse_id(text: str) -> MessageId:
    """Parse `ledger:entry[:partition[:batch index]]`.

    Raises:
        OffsetError
    """
    try:
        numbers = [int(each) for each in text.split(":")]
    except ValueError:
        numbers = []
    if not 2 <= len(numbers) <= 4 or any(not -1 <= each < 1 << 63 for each in numbers):
        raise OffsetError(f"{text[:100]!r} is not a message id; {_FORM}")
    ledger_id, entry_id, *rest = numbers
    return MessageId(ledger_id, entry_id, rest[1] if len(rest) > 1 else -1, -1)


def shown_id(at: MessageId) -> str:
    """Format an id so that `parse_id` can read it."""
    if at.batch_index < 0:
        return f"{at.ledger_id}:{at.entry_id}"
    return f"{at.ledger_id}:{at.entry_id}:-1:{at.batch_index}"


def reach(offset: MessageId) -> tuple[int, int, int]:
    """Return the sort key of an offset: a whole entry reaches farther than any message in it."""
    index = offset.batch_index if offset.batch_index >= 0 else _WHOLE
    return offset.ledger_id, offset.entry_id, index


def before(first: MessageId) -> MessageId:
    """Return the offset before a message that is to be read first."""
    if first.batch_index > 0:
        return MessageId(first.ledger_id, first.entry_id, first.batch_index - 1)
    return MessageId(first.ledger_id, first.entry_id - 1)
