"""Ids of transactions, and which of them have ended. Pure.

An id consists of the coordinator's number (most significant bits) and a sequence number there
(least significant bits), which is never used twice. With each end, a coordinator sends the number
up to which all transactions have ended (its low watermark). Outcomes up to it need not be kept.
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
    """Id of one transaction."""

    most: int
    """Number of the coordinator."""
    least: int
    """Sequence number at the coordinator."""

    def __str__(self) -> str:
        return f"({self.most},{self.least})"


def coordinator_topic(number: int) -> TopicName:
    """Return the topic whose owner serves this coordinator."""
    return COORDINATORS.partition(number)


def is_coordinator(name: TopicName) -> bool:
    """Whether a topic is the log of a coordinator, or the partitioned topic of all of them."""
    return name.partitioned == COORDINATORS


class EndedTransactions:
    """Transactions that have ended here, so that late requests for them are refused.

    A transaction that stays open for hours holds its coordinator's watermark down while millions of
    others end. So an outcome takes two bits, in pages by coordinator and number.
    """

    def __init__(self) -> None:
        self._watermarks: dict[int, int] = {}
        self._pages: dict[tuple[int, int], tuple[int, int]] = {}
        """Pages by coordinator and page number. A page has one bit for each ended transaction, and
        one for each of these that was committed."""

    def __len__(self) -> int:
        return sum(ended.bit_count() for ended, _ in self._pages.values())

    def __contains__(self, txn: TransactionId) -> bool:
        if txn.least <= self._watermarks.get(txn.most, -1):
            return True
        key, bit = _place_of(txn)
        return bool(self._pages.get(key, _NONE)[0] & bit)

    def was_committed(self, txn: TransactionId) -> bool | None:
        """Return whether it was committed; None if it has not ended, or its outcome is
        forgotten."""
        key, bit = _place_of(txn)
        ended, committed = self._pages.get(key, _NONE)
        return bool(committed & bit) if ended & bit else None

    def note(self, txn: TransactionId, *, is_committed: bool) -> None:
        if txn not in self:
            key, bit = _place_of(txn)
            ended, committed = self._pages.get(key, _NONE)
            self._pages[key] = ended | bit, committed | bit if is_committed else committed

    def pass_watermark(self, coordinator: int, least: int) -> None:
        """Forget outcomes up to `least`: these transactions of the coordinator have ended
        everywhere."""
        if least <= self._watermarks.get(coordinator, -1):
            return
        self._watermarks[coordinator] = least
        last = least >> _PAGE_SHIFT
        for key in [each for each in self._pages if each[0] == coordinator and each[1] <= last]:
            ended, committed = self._pages.pop(key)
            # In the page that contains the watermark, outcomes above it stay.
            above = -2 << (least & _PAGE_MASK) if key[1] == last else 0
            if ended & above:
                self._pages[key] = ended & above, committed & above

    def dump(self) -> dict[str, Any]:
        """Return the state as JSON; bits are hexadecimal digits, number 0 of a page is the lowest
        bit."""
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
        # The format before there were pages.
        for most, least, is_committed in stored.get("outcomes", ()):
            self.note(TransactionId(most, least), is_committed=is_committed)
        return self


def _place_of(txn: TransactionId) -> tuple[tuple[int, int], int]:
    """Return the page of an id, and the id's bit there."""
    return (txn.most, txn.least >> _PAGE_SHIFT), 1 << (txn.least & _PAGE_MASK)
