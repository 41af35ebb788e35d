"""Offsets: how far each topic was read, as Spark logs them and as users write them. Pure.

In a checkpoint an offset is `{topic: "ledger:entry"}` per topic, or partition of one: the *last*
entry that was read; "-1:-1" before the first. With a batch index, "ledger:entry:partition:index",
it ends within a batch: only where a user said so. Users name messages: `startingOffsets` the first
that is to be read, `endingOffsets` the last one.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeGuard

from magnetar.sdk.errors import SdkError
from magnetar.sdk.message_id import MessageId
from magnetar.sdk.spark.errors import OffsetError
from magnetar.sdk.wire.errors import TopicNameError
from magnetar.sdk.wire.topic_name import TopicName

BEFORE_FIRST = MessageId(-1, -1)
SLICES_KEY = "sliceEntries"
SUBSCRIPTION_KEY = "subscription"
"""Beside the topics of an offset: the subscription that holds what the query may still need. It is
part of the offset so that a restarted query finds its own."""
LEFT_KEY = "entriesLeft"
REMOVED_KEY = "removedThrough"
JOINED_KEY = "joined"

_WHOLE = 1 << 31
"""More than any index in a batch."""

_FORM = "it is ledger:entry, or ledger:entry:partition:batch-index"


@dataclass(frozen=True)
class StartingOffsets:
    """`earliest`, `latest`, or something for each topic."""

    word: str = ""
    """For topics that are not named below; empty if there are such."""
    topics: Mapping[str, MessageId] = field(default_factory=dict)
    """MessageId.EARLIEST and LATEST stand for the words."""

    def of(self, topic: str) -> MessageId | None:
        """What is said of the topic; None: nothing."""
        if self.word:
            return MessageId.EARLIEST if self.word == "earliest" else MessageId.LATEST
        return self.topics.get(topic)


def parse_offsets(text: str) -> StartingOffsets:
    """Read what a user wrote: a word, or JSON.

    Raises:
        OffsetError: neither.
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
            topic = str(TopicName.parse(name))
        except TopicNameError as error:
            raise OffsetError(str(error)) from None
        if not isinstance(value, str):
            raise OffsetError(f"{name}: {value!r} is not a message id; {_FORM}")
        if value.lower() in ("earliest", "latest"):
            is_earliest = value.lower() == "earliest"
            topics[topic] = MessageId.EARLIEST if is_earliest else MessageId.LATEST
        else:
            topics[topic] = _user_id(name, value)
    return StartingOffsets("", topics)


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
    """`ledger:entry[:partition[:batch index]]`.

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
    """What `parse_id` reads."""
    if at.batch_index < 0:
        return f"{at.ledger_id}:{at.entry_id}"
    return f"{at.ledger_id}:{at.entry_id}:-1:{at.batch_index}"


def reach(offset: MessageId) -> tuple[int, int, int]:
    """What orders offsets: a whole entry reaches farther than any message in it."""
    index = offset.batch_index if offset.batch_index >= 0 else _WHOLE
    return offset.ledger_id, offset.entry_id, index


def before(first: MessageId) -> MessageId:
    """The offset before a message that is to be read first."""
    if first.batch_index > 0:
        return MessageId(first.ledger_id, first.entry_id, first.batch_index - 1)
    return MessageId(first.ledger_id, first.entry_id - 1)


@dataclass(frozen=True)
class QueryOffset:
    """What Spark logs of a query: how far it has read, and who holds the rest."""

    topics: Mapping[str, MessageId]
    subscription: str = ""
    slice_entries: Mapping[str, int] = field(default_factory=dict)
    """How the micro-batch that ends here is cut, by topic; see `planning.slice_entries`."""
    entries_left: Mapping[str, int] = field(default_factory=dict)
    """How many entries were behind the offset in its ledger, of topics that had any: with the
    ledger they are gone, and nothing else tells of them then."""
    removed_through: Mapping[str, int] = field(default_factory=dict)
    """The last ledger that had been removed by then, of topics of which nothing has been read; -1:
    none. One that goes later is a loss."""

    joined: Mapping[str, int] = field(default_factory=dict)
    """Topic -> number of the task that reads it with others in the micro-batch that ends here; see
    `planning.joined_topics`. Empty in a checkpoint from before that was logged."""

    def to_json(self) -> dict[str, object]:
        return {
            "topics": {name: shown_id(at) for name, at in sorted(self.topics.items())},
            SUBSCRIPTION_KEY: self.subscription,
            SLICES_KEY: dict(sorted(self.slice_entries.items())),
            LEFT_KEY: dict(sorted(self.entries_left.items())),
            REMOVED_KEY: dict(sorted(self.removed_through.items())),
            JOINED_KEY: dict(sorted(self.joined.items())),
        }

    @classmethod
    def from_json(cls, found: Mapping[str, object]) -> "QueryOffset":
        """
        Raises:
            OffsetError: no offset of this source.
        """
        topics, subscription = found.get("topics"), found.get(SUBSCRIPTION_KEY, "")
        cuts, left = found.get(SLICES_KEY, {}), found.get(LEFT_KEY, {})
        removed, joined = found.get(REMOVED_KEY, {}), found.get(JOINED_KEY, {})
        if (
            not isinstance(topics, dict)
            or not isinstance(subscription, str)
            or not _are_numbers(cuts, at_least=1)
            or not _are_numbers(left, at_least=1)
            or not _are_numbers(removed, at_least=-1)
            or not _are_numbers(joined, at_least=0)
        ):
            raise OffsetError(f"the checkpoint's offset is not from this source: {found!r:.200}")
        read = {name: parse_id(str(at)) for name, at in topics.items()}
        return cls(read, subscription, cuts, left, removed, joined)


def _are_numbers(found: object, *, at_least: int) -> TypeGuard[dict[str, int]]:
    return isinstance(found, dict) and all(
        isinstance(each, int) and each >= at_least for each in found.values()
    )
