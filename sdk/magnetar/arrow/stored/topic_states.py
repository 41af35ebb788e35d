"""The readable data: topics, their ledgers, and their confirmed ends.

A topic's ledgers come from its broker, the only one that knows how far the open ledger is
confirmed. Everything that the driver plans to read is acknowledged to producers; nothing after it
is ever read.
"""

import base64
import json
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import re2

from magnetar.arrow.stored.admin_client import AdminClient, Answers
from magnetar.arrow.stored.errors import OffsetError, TopicNotFoundError
from magnetar.arrow.stored.offsets import BEFORE_FIRST, parse_id
from magnetar.arrow.stored.source_options import Selection
from magnetar.sdk.message_id import MessageId
from magnetar.sdk.wire.topic_name import TopicName

_NOT_FOUND = 404
_ENDED = "Terminated"
"""State of a topic whose log was terminated."""


@dataclass(frozen=True, slots=True)
class LedgerState:
    """One ledger of a topic, and how much of it can be read."""

    ledger_id: int
    entries: int
    bytes: int
    object: tuple[str, str] | None = None
    """Name of the object store that it is in, and the key; it may have left the bookies."""

    @property
    def entry_bytes(self) -> float:
        """Mean size of an entry, in bytes."""
        return self.bytes / self.entries if self.entries and self.bytes else 1024.0


@dataclass(frozen=True, slots=True)
class TopicState:
    """A topic or partition at one moment."""

    name: str
    partition: int
    ledgers: tuple[LedgerState, ...] = ()
    """Ledgers that can be read, oldest first."""
    end: MessageId = BEFORE_FIRST
    """The last entry that can be read; before the first one if there is none."""
    mark_deletes: Mapping[str, MessageId] | None = None
    """Subscription -> position up to which everything is acknowledged."""
    aborted: Mapping[int, bytes] = field(default_factory=dict)
    """Ledger -> bitmap of the entries of aborted transactions: bit `i % 8` of byte `i // 8`."""
    removed_through: int = -1
    """The last ledger with entries that was trimmed; -1 if none was."""
    stores: Mapping[str, str] = field(default_factory=dict)
    """Name of an object store -> its settings as JSON, for the stores that hold ledgers."""
    is_there: bool = True
    """Whether the topic exists. False for a partition that the topic should have."""
    unread: str = ""
    """Description of existing data that a query does not read; empty if nothing is known."""
    has_ended: bool = False
    """Whether the topic was terminated and can be read completely: nothing will ever follow
    `end`."""
    messages_per_entry: float | None = None
    """Mean of recent publishes, from the topic's broker; None if the broker does not report it."""

    @property
    def first_ledger_id(self) -> int:
        """The oldest ledger; -1 if there is none."""
        return self.ledgers[0].ledger_id if self.ledgers else -1


class TopicStates:
    """Reads the topics of a query from brokers."""

    def __init__(
        self, admin: AdminClient, selection: Selection, *, counts_messages: bool = False
    ) -> None:
        """`counts_messages`: brokers are to determine the number of messages per entry, where it is
        unknown."""
        self._admin = admin
        self._selection = selection
        self._counts_messages = counts_messages
        self._expression = re2.compile(selection.pattern) if selection.pattern else None

    def read(self, *, missing_ok: bool = False, hold_s: int = 0) -> dict[str, TopicState]:
        """Return all topics and partitions of the query as they are now, by name.

        For `hold_s` seconds their brokers treat them as used, even without other clients.

        Raises:
            TopicNotFoundError: a named topic does not exist (unless `missing_ok`), or none matches
                the pattern when the query begins.
            UnreachableError, RefusedError
        """
        topics = self._topics(missing_ok)
        answers = self._stored(topics, hold_s)
        for topic in topics:
            refusal = answers.refused.get(str(topic))
            if refusal is not None and refusal.status != _NOT_FOUND:
                raise refusal
            if refusal is not None and self._expression is None and not missing_ok:
                raise TopicNotFoundError(
                    f"topic {topic} does not exist: create it, or see that option topic is "
                    f"right ({refusal})"
                ) from None
        counts = {
            topic: answers.found[str(topic)].get("partitions")
            for topic in topics
            if str(topic) in answers.found
        }
        parts = {
            topic: [topic.partition(index) for index in range(count)]
            for topic, count in counts.items()
            if count is not None
        }
        every = self._stored([name for names in parts.values() for name in names], hold_s)
        found: dict[str, TopicState] = {}
        for topic in counts:
            for name in parts.get(topic, [topic]):
                stats = (every if topic in parts else answers).found.get(str(name))
                if stats is not None:
                    found[str(name)] = state_of(name, stats)
                    continue
                refusal = every.refused[str(name)]
                if refusal.status != _NOT_FOUND:
                    raise refusal
                found[str(name)] = TopicState(str(name), name.partition_index, is_there=False)
        return found

    def selects(self, name: str) -> bool:
        """Return whether the query reads this topic, or the topic of this partition."""
        topic = TopicName.parse(name)
        if self._expression is None:
            return bool({topic, topic.partitioned}.intersection(self._selection.topics))
        return self._matches(topic.partitioned)

    def first_since(self, states: Mapping[str, TopicState], time_ms: int) -> dict[str, MessageId]:
        """Return the offset before each topic's first message that was published at this time or
        later.

        Raises:
            UnreachableError, RefusedError
        """
        answers = self._admin.ask_topics("messageIds", states, timeMs=time_ms)
        for name, refusal in answers.refused.items():
            if refusal.status != _NOT_FOUND or (states[name].is_there and states[name].ledgers):
                raise refusal
        return {
            name: _before_first(state, answers.found.get(name)) for name, state in states.items()
        }

    def _topics(self, missing_ok: bool) -> list[TopicName]:
        if self._expression is None:
            return list(self._selection.topics)
        namespace = f"/admin/v2/persistent/{self._selection.namespace}"
        plain = self._admin.get(namespace)
        partitioned = self._admin.get(f"{namespace}/partitioned")
        names = {TopicName.parse(each).partitioned for each in (*plain, *partitioned)}
        topics = [each for each in sorted(names, key=str) if self._matches(each)]
        if not topics and not missing_ok:
            raise TopicNotFoundError(
                f"option topicsPattern: no topic of {self._selection.namespace} matches "
                f"{self._selection.pattern!r}"
            )
        return topics

    def _matches(self, topic: TopicName) -> bool:
        assert self._expression is not None
        return (
            topic.is_persistent
            and f"{topic.tenant}/{topic.namespace}" == self._selection.namespace
            and not topic.local_name.startswith("__")
            and bool(self._expression.fullmatch(topic.local_name))
        )

    def _stored(self, topics: Iterable[TopicName], hold_s: int) -> Answers:
        return self._admin.ask_topics(
            "internalStats",
            map(str, topics),
            readHoldS=hold_s,
            countsMessages=self._counts_messages,
        )


def _before_first(state: TopicState, found: Mapping[str, Any] | None) -> MessageId:
    if found is None:
        return BEFORE_FIRST
    ledger_id, entry_id = int(found["ledgerId"]), int(found["entryId"])
    if (ledger_id, entry_id) > (state.end.ledger_id, state.end.entry_id) or entry_id < 0:
        # No message is as late; or the topic is empty.
        return state.end if (ledger_id, entry_id) > (-1, -1) else BEFORE_FIRST
    return MessageId(ledger_id, entry_id - 1)


def state_of(topic: TopicName, stats: Mapping[str, Any]) -> TopicState:
    """Convert the broker's answer about a topic's storage.

    A ledger without a count of entries is still open. There may be two of them. Then nothing of the
    second one is final before the first one is closed, and reading ends at the confirmed end of the
    first.

    Raises:
        OffsetError: the answer has an invalid position.
    """
    confirmed = last = _position(stats["lastConfirmedEntry"])
    transactions = stats.get("transactions", {})
    if transactions:
        last = min(last, _position(transactions["maxReadPosition"]))
    ledgers: list[LedgerState] = []
    for each in stats["ledgers"]:
        ledger_id, entries, size = each["ledgerId"], each["entries"], each["size"]
        found = each.get("object", {}) if each.get("offloaded", False) else {}
        stored = (found["store"], found["key"]) if found else None
        if ledger_id > last.ledger_id:
            break
        if entries <= 0:
            if ledger_id != last.ledger_id or last.entry_id < 0:
                break
            total = stats["currentLedgerEntries"] or 1
            entries = last.entry_id + 1
            size = int(stats["currentLedgerSize"] * entries / total)
            ledgers.append(LedgerState(ledger_id, entries, size))
            break
        if ledger_id == last.ledger_id:
            entries = min(entries, last.entry_id + 1)
        ledgers.append(LedgerState(ledger_id, entries, size, stored))
    cursors = {
        name: _position(each["markDeletePosition"])
        for name, each in stats.get("cursors", {}).items()
    }
    end = MessageId(ledgers[-1].ledger_id, ledgers[-1].entries - 1) if ledgers else BEFORE_FIRST
    aborted = {
        int(ledger_id): zlib.decompress(base64.b64decode(bits))
        for ledger_id, bits in transactions.get("aborted", {}).items()
    }
    return TopicState(
        str(topic),
        topic.partition_index,
        tuple(ledgers),
        end,
        cursors,
        aborted,
        removed_through=int(stats.get("removedThrough", -1)),
        has_ended=stats.get("state") == _ENDED and _is_all_read(end, confirmed),
        stores={name: json.dumps(each) for name, each in stats.get("objectStores", {}).items()},
        messages_per_entry=_messages_per_entry(stats),
    )


def _is_all_read(end: MessageId, confirmed: MessageId) -> bool:
    """Return whether the readable data ends with the last entry of the topic.

    That is so if no transaction holds entries back, and all ledgers are counted.
    """
    return confirmed.entry_id < 0 or end == confirmed


def _messages_per_entry(stats: Mapping[str, Any]) -> float | None:
    """Return the mean number of messages per entry; None if it is unknown.

    It is of all publishes since the broker loaded the topic, or else of the last entry.
    """
    entries = int(stats.get("entriesAddedCounter", 0))
    if entries > 0 and "messagesAddedCounter" in stats:
        return int(stats["messagesAddedCounter"]) / entries
    return float(stats["lastEntryMessages"]) if "lastEntryMessages" in stats else None


def _position(text: str) -> MessageId:
    try:
        return parse_id(text)
    except OffsetError as error:
        raise OffsetError(f"a broker says {text!r} where a position should be") from error
