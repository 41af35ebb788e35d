"""The core of a topic's transaction buffer: entries that are hidden, or aborted. Pure.

Messages of a transaction lie in the topic's log among all others. A reader may go up to the first
entry of the oldest open transaction, and passes over entries of aborted ones. Both are known by
positions, so that nobody has to look into an entry to tell.

What is handed to the log and not answered yet is hidden, too, from where the log ended then: a
reader must not see an entry in the moment between its being durable and our hearing of that.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from magnetar.broker.features.delayed.position_set import PositionSet
from magnetar.broker.features.transactions.ids import EndedTransactions, TransactionId
from magnetar.broker.features.transactions.markers import Sender
from magnetar.ledger.position import Position


@dataclass(slots=True)
class OpenTransaction:
    """A transaction that has messages here and no end."""

    first: Position
    positions: PositionSet
    begun_ms: int = 0
    """When its first message was stored, wall clock; 0: before the topic was loaded."""
    senders: dict[str, tuple[int, int]] = field(default_factory=dict)
    """The last message of each producer, by name: what it sends again is not stored again."""


class BufferState:
    """The transactions of one topic. `version` changes whenever readers may see something else."""

    def __init__(self) -> None:
        self.open: dict[TransactionId, OpenTransaction] = {}
        """In the order of their first entries."""
        self.aborted = PositionSet()
        self.ended = EndedTransactions()
        self.version = 0
        self.committed_count = 0
        self.aborted_count = 0
        self.ended_before = (0, 0)
        """How many were committed, and aborted, at former owners of the topic."""
        self._floors: dict[int, Position] = {}
        """Where the log ended when each of the appends under way was handed to it, by number."""
        self._handed_over = 0

    @property
    def is_plain(self) -> bool:
        """Nothing is hidden, and nothing passed over."""
        return not self.open and not self._floors and not self.aborted

    # Appends

    def handed_over(self, last_confirmed: Position) -> int:
        """Something of a transaction is about to be appended; returns a number for `answered`."""
        self._handed_over += 1
        self._floors[self._handed_over] = last_confirmed
        return self._handed_over

    def answered(self, number: int) -> None:
        """Stop hiding an append of a transaction: it is in the log and noted, or was refused."""
        del self._floors[number]
        self.version += 1

    # Entries, in the order of the log

    def on_entry(
        self,
        txn: TransactionId,
        position: Position,
        sender: Sender | None = None,
        *,
        now_ms: int = 0,
    ) -> None:
        """A message of a transaction is stored."""
        if txn in self.ended:
            # Cannot be: what comes late is refused. If it is there all the same, nobody reads it.
            if self.ended.was_committed(txn) is not True:
                self.aborted.add(position)
            return
        found = self.open.get(txn)
        if found is None:
            found = self.open[txn] = OpenTransaction(position, PositionSet(), now_ms)
        found.positions.add(position)
        if sender is not None:
            found.senders[sender.name] = sender.order

    def is_stored(self, txn: TransactionId, sender: Sender) -> bool:
        """Whether the message is one that a producer sends again."""
        found = self.open.get(txn)
        last = found.senders.get(sender.name) if found is not None else None
        return last is not None and sender.order <= last

    def on_end(self, txn: TransactionId, *, is_committed: bool) -> None:
        """The marker of a transaction is stored; a second one changes nothing."""
        found = self.open.pop(txn, None)
        if found is not None and not is_committed:
            self.aborted.update(found.positions)
        if txn not in self.ended:
            if is_committed:
                self.committed_count += 1
            else:
                self.aborted_count += 1
        self.ended.note(txn, is_committed=is_committed)
        self.version += 1

    def overdue(self, coordinator: int, low_watermark: int) -> list[TransactionId]:
        """Open ones that, as the coordinator says, have ended everywhere: they never joined."""
        return [txn for txn in self.open if txn.most == coordinator and txn.least <= low_watermark]

    # Questions

    def limit(self, last_confirmed: Position) -> Position:
        """The last position that may be read, of a log that ends there."""
        for found in self.open.values():
            first = found.first
            last_confirmed = min(last_confirmed, Position(first.ledger_id, first.entry_id - 1))
            break
        return self.known_through(last_confirmed)

    def known_through(self, last_confirmed: Position) -> Position:
        """Everything up to there is noted here."""
        for floor in self._floors.values():
            return min(last_confirmed, floor)
        return last_confirmed

    # Snapshots

    def trimmed(self, first: Position) -> None:
        """The log begins there by now."""
        self.aborted.discard_ledgers_before(first.ledger_id)

    def dump(self) -> dict[str, Any]:
        """As JSON."""
        return {
            "open": [
                [
                    txn.most,
                    txn.least,
                    list(found.first),
                    found.positions.dump(),
                    [[name, *order] for name, order in found.senders.items()],
                ]
                for txn, found in self.open.items()
            ],
            "aborted": self.aborted.dump(),
            "ended": self.ended.dump(),
            "counts": [self.committed_count, self.aborted_count],
        }

    @classmethod
    def load(cls, stored: Mapping[str, Any]) -> "BufferState":
        self = cls()
        for most, least, first, positions, senders in stored["open"]:
            self.open[TransactionId(most, least)] = OpenTransaction(
                Position(*first),
                PositionSet.load(positions),
                senders={name: (sequence_id, chunk) for name, sequence_id, chunk in senders},
            )
        self.aborted = PositionSet.load(stored["aborted"])
        self.ended = EndedTransactions.load(stored["ended"])
        self.committed_count, self.aborted_count = stored["counts"]
        for most, least, is_committed in stored.get("ending", ()):
            self.on_end(TransactionId(most, least), is_committed=is_committed)
        return self
