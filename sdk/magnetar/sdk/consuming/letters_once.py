"""Which messages have a dead letter, or one on its way: they need no second one. Pure; no I/O.

An entry comes again whenever one of its messages is refused, and what is on its way comes though it
was acknowledged meanwhile: so the same message may come too often several times. What is forgotten,
or was known to another consumer, may get a second letter.
"""

from collections import OrderedDict
from collections.abc import Iterable

from magnetar.sdk.ack_grouping import ALL_MESSAGES
from magnetar.sdk.message import Message
from magnetar.sdk.message_id import MessageId

LETTERS_REMEMBERED_MAX = 10_000
"""Entries of which messages have letters; the oldest is forgotten."""


class LettersOnce:
    """Of one consumer, over all its topics: ledgers have one number in all of them."""

    def __init__(self) -> None:
        self._under_way: dict[MessageId, Message] = {}
        """As they came last."""
        self._stored: OrderedDict[tuple[int, int], int] = OrderedDict()
        """By entry, the bits of its messages that have letters."""

    def sort(self, messages: Iterable[Message]) -> tuple[list[Message], list[Message]]:
        """Messages that came too often: those to be stored now, and those that are stored and need
        to be acknowledged only. The others share the lot of what is on its way."""
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

    def stored(self, message: Message) -> None:
        """Its letter is stored."""
        message_id = message.message_id
        self._under_way.pop(message_id, None)
        entry = _entry_of(message_id)
        self._stored[entry] = self._stored.pop(entry, 0) | _bit_of(message_id)
        if len(self._stored) > LETTERS_REMEMBERED_MAX:
            self._stored.popitem(last=False)

    def failed(self, message: Message) -> Message:
        """It has no letter; returns the message as it came last, to be asked for again."""
        return self._under_way.pop(message.message_id, message)

    @property
    def has_stored(self) -> bool:
        """Whether `delivered` has something to forget."""
        return bool(self._stored)

    def delivered(self, ledger_id: int, entry_id: int) -> None:
        """An entry came and is not given up: its count began anew, as after a move."""
        if self._stored:
            self._stored.pop((ledger_id, entry_id), None)


def _entry_of(message_id: MessageId) -> tuple[int, int]:
    return message_id.ledger_id, message_id.entry_id


def _bit_of(message_id: MessageId) -> int:
    return ALL_MESSAGES if message_id.batch_index < 0 else 1 << message_id.batch_index
