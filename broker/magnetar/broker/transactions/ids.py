"""Ids of transactions, and which of them have ended. Pure.

An id is the number of its coordinator (most significant bits) and a sequence number there (least),
which is never used twice. A coordinator tells with each end up to which number all have ended (its
low watermark), so nobody has to remember single ones for long.
"""

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from magnetar.sdk.wire import TopicName, parse_topic_name

COORDINATORS: Final = parse_topic_name("persistent://pulsar/system/transaction_coordinator_assign")
"""Who serves partition n of it is coordinator n; its log is that partition's log."""


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
    """Which transactions have ended here, so that what comes late for them is refused."""

    def __init__(self) -> None:
        self._watermarks: dict[int, int] = {}
        self._outcomes: dict[TransactionId, bool] = {}

    def __len__(self) -> int:
        return len(self._outcomes)

    def __contains__(self, txn: TransactionId) -> bool:
        return txn in self._outcomes or txn.least <= self._watermarks.get(txn.most, -1)

    def was_committed(self, txn: TransactionId) -> bool | None:
        """How it has ended; None: that is not known any more, or it has not."""
        return self._outcomes.get(txn)

    def note(self, txn: TransactionId, *, is_committed: bool) -> None:
        if txn not in self:
            self._outcomes[txn] = is_committed

    def pass_watermark(self, coordinator: int, least: int) -> None:
        """All transactions of a coordinator up to `least` have ended everywhere."""
        if least <= self._watermarks.get(coordinator, -1):
            return
        self._watermarks[coordinator] = least
        for txn in [e for e in self._outcomes if e.most == coordinator and e.least <= least]:
            del self._outcomes[txn]

    def dump(self) -> dict[str, Any]:
        """As JSON."""
        return {
            "watermarks": sorted(self._watermarks.items()),
            "outcomes": [[txn.most, txn.least, done] for txn, done in self._outcomes.items()],
        }

    @classmethod
    def load(cls, stored: Mapping[str, Any]) -> "EndedTransactions":
        self = cls()
        self._watermarks = dict(stored["watermarks"])
        self._outcomes = {
            TransactionId(most, least): done for most, least, done in stored["outcomes"]
        }
        return self
