"""Ids of transactions, and which of them have ended. Pure.

An id is the number of its coordinator (most significant bits) and a sequence number there (least),
which is never used twice. A coordinator tells with each end up to which number all have ended (its
low watermark), so nobody has to remember single ones for long.
"""

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from magnetar.sdk.wire import TopicName, parse_topic_name

_PAGE_SHIFT: Final = 10
_PAGE_MASK: Final = (1 << _PAGE_SHIFT) - 1
_NONE: Final = (0, 0)

COORDINATORS: Final = parse_topic_name("persistent://pulsar/system/transaction_coordinator_assign")
"""System topic of the coordinators. The owner of its partition n serves coordinator n and keeps the
coordinator's log there."""


class TransactionId(NamedTuple):
    """Of one transaction."""

    most: int
    """The coordinator."""
    least: int
    """The number there."""

    def __str__(self) -> str:
        return f"({self.most},{self.least})"


def coordinator_topic(number: int) -> TopicName:
    """The topic whose owner is that coordinator."""
    return COORDINATORS.partition(number)


def is_coordinator(name: TopicName) -> bool:
    """Whether a topic is the place of a coordinator, or stands for all of them."""
    return name.partitioned == COORDINATORS


class EndedTransactions:
    """Transactions that have ended here, so that late requests for them are refused.

    One that stays open for hours holds its coordinator's watermark down, while others end by the
    million: an outcome is two bits, in pages by coordinator and number.
    """

    def __init__(self) -> None:
        self._watermarks: dict[int, int] = {}
        self._pages: dict[tuple[int, int], tuple[int, int]] = {}
        """By coordinator and number of the page: a bit for each that has ended, and for each of
        these that was committed."""

    def __len__(self) -> int:
        return sum(ended.bit_count() for ended, _ in self._pages.values())

    def __contains__(self, txn: TransactionId) -> bool:
        if txn.least <= self._watermarks.get(txn.most, -1):
            return True
        key, bit = _place_of(txn)
        return bool(self._pages.get(key, _NONE)[0] & bit)

    def was_committed(self, txn: TransactionId) -> bool | None:
        """How it has ended; None: that is not known any more, or it has not."""
        key, bit = _place_of(txn)
        ended, committed = self._pages.get(key, _NONE)
        return bool(committed & bit) if ended & bit else None

    def note(self, txn: TransactionId, *, is_committed: bool) -> None:
        if txn not in self:
            key, bit = _place_of(txn)
            ended, committed = self._pages.get(key, _NONE)
            self._pages[key] = ended | bit, committed | bit if is_committed else committed

    def pass_watermark(self, coordinator: int, least: int) -> None:
        """All transactions of a coordinator up to `least` have ended everywhere."""
        if least <= self._watermarks.get(coordinator, -1):
            return
        self._watermarks[coordinator] = least
        last = least >> _PAGE_SHIFT
        for key in [each for each in self._pages if each[0] == coordinator and each[1] <= last]:
            ended, committed = self._pages.pop(key)
            # Of the page that the watermark is in, those above it stay.
            above = -2 << (least & _PAGE_MASK) if key[1] == last else 0
            if ended & above:
                self._pages[key] = ended & above, committed & above

    def dump(self) -> dict[str, Any]:
        """As JSON; bits as hexadecimal digits, number 0 of a page in the lowest."""
        return {
            "watermarks": sorted(self._watermarks.items()),
            "pages": [
                [*key, f"{ended:x}", f"{committed:x}"]
                for key, (ended, committed) in self._pages.items()
            ],
        }

    @classmethod
    def load(cls, stored: Mapping[str, Any]) -> "EndedTransactions":
        self = cls()
        self._watermarks = dict(stored["watermarks"])
        for most, page, ended, committed in stored.get("pages", ()):
            self._pages[most, page] = int(ended, 16), int(committed, 16)
        # As it was written before there were pages.
        for most, least, is_committed in stored.get("outcomes", ()):
            self.note(TransactionId(most, least), is_committed=is_committed)
        return self


def _place_of(txn: TransactionId) -> tuple[tuple[int, int], int]:
    """The page that an id is on, and its bit there."""
    return (txn.most, txn.least >> _PAGE_SHIFT), 1 << (txn.least & _PAGE_MASK)
