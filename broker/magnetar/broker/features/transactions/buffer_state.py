"""The core of a topic's transaction buffer: entries that are hidden, or aborted. Pure.

Messages of a transaction lie in the topic's log among all others. A reader may read up to the first
entry of the oldest open transaction, and skips entries of aborted ones. Both are known by position,
so no entry has to be decoded.

Appends that are not answered yet are hidden, too, from the end of the log at the time they were
handed over. Otherwise a reader could see an entry that is durable before this state knows of it.
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
    """A transaction that has messages here and has not ended."""

    first: Position
    positions: PositionSet
    begun_ms: int = 0
    """Wall-clock time at which its first message was stored; 0 if before the topic was loaded."""
    senders: dict[str, tuple[int, int]] = field(default_factory=dict)
    """Last message of each producer, by name. Messages up to it that are sent again are not
    stored."""


class BufferState:
    """The transactions of one topic. `version` changes whenever readers may see something else."""

    def __init__(self) -> None:
        self.open: dict[TransactionId, OpenTransaction] = {}
        """Open transactions, in the order of their first entries."""
        self.aborted = PositionSet()
        self.ended = EndedTransactions()
        self.version = 0
        self.committed_count = 0
        self.aborted_count = 0
        self.ended_before = (0, 0)
        """Numbers of committed and of aborted transactions that former owners of the topic
        counted."""
        self._floors: dict[int, Position] = {}
        """End of the log when each pending append was handed over, by the number of the append."""
        self._handed_over = 0

    @property
    def is_plain(self) -> bool:
        """Whether no entry is hidden or skipped."""
        return not self.open and not self._floors and not self.aborted

    # Appends

    def handed_over(self, last_confirmed: Position) -> int:
        """Hide an append of a transaction that is about to begin; return its number for
        `answered`."""
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
        """Note a stored message of a transaction."""
        if txn in self.ended:
            # A late message is refused, so this occurs only in a replay, when the transaction log
            # of a terminated topic has given the end first. Unless it committed, no reader sees the
            # entry.
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
        """Whether a producer's message is already stored in this transaction.

        True for all up to its last one: what is stored is a prefix of what it sent
        (docs/decisions/0023).
        """
        found = self.open.get(txn)
        last = found.senders.get(sender.name) if found is not None else None
        return last is not None and sender.order <= last

    def on_end(self, txn: TransactionId, *, is_committed: bool) -> None:
        """Note the stored marker of a transaction; a second one changes nothing."""
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
        """Return open transactions that, by the coordinator's watermark, have ended everywhere: the
        coordinator never knew that they joined this topic."""
        return [txn for txn in self.open if txn.most == coordinator and txn.least <= low_watermark]

    # Questions

    def limit(self, last_confirmed: Position) -> Position:
        """Return the last position that may be read in a log whose last confirmed entry is
        given."""
        for found in self.open.values():
            first = found.first
            last_confirmed = min(last_confirmed, Position(first.ledger_id, first.entry_id - 1))
            break
        return self.known_through(last_confirmed)

    def known_through(self, last_confirmed: Position) -> Position:
        """Return the position up to which every entry is noted here."""
        for floor in self._floors.values():
            return min(last_confirmed, floor)
        return last_confirmed

    # Snapshots

    def trimmed(self, first: Position) -> None:
        """Forget aborted entries of ledgers before `first`, the log's first position."""
        self.aborted.discard_ledgers_before(first.ledger_id)

    def forget_trimmed_messages(self, first: Position) -> None:
        """Forget messages of a loaded snapshot in ledgers before `first`, the log's first position,
        and with them the transactions that have no others.

        The end of a transaction follows its messages. If all of these are trimmed, the end may be
        trimmed, too, and a replay of the log does not find it: the transaction would hide the whole
        log. If it is open after all, it hides nothing until its next message, which is noted again.
        """
        for txn, found in list(self.open.items()):
            found.positions.discard_ledgers_before(first.ledger_id)
            if not found.positions:
                del self.open[txn]

    def dump(self) -> dict[str, Any]:
        """Return the state as JSON."""
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
