"""A coordinator's core: transactions and their states, as records give them. Pure.

    OPEN -> COMMITTING -> COMMITTED
    OPEN -> ABORTING   -> ABORTED

Every change is a record first. Applying the records in order gives the state, here and after a
crash. The writer of a record applies it at once, so that the next decision includes it, and acts on
it when it is durable. If it cannot be made durable, the state is dropped and read again.

The outcomes of the last `finished_max` ended transactions are kept.
"""

import json
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final

from magnetar.broker.features.transactions.errors import (
    InvalidTransactionStatusError,
    TransactionNotFoundError,
)
from magnetar.broker.features.transactions.ids import TransactionId
from magnetar.ledger.errors import InvariantError

Stored = dict[str, Any]
"""A record, as JSON. Layouts: docs/formats/transactions.md. Stored, never rename."""


class Status(StrEnum):
    """Stage of a transaction. Stored, never rename."""

    OPEN = "open"
    COMMITTING = "committing"
    ABORTING = "aborting"
    COMMITTED = "committed"
    ABORTED = "aborted"


TRANSITIONS: Final[Mapping[tuple[Status, Status], bool]] = {
    (Status.OPEN, Status.COMMITTING): True,
    (Status.OPEN, Status.ABORTING): True,
    (Status.COMMITTING, Status.COMMITTED): True,
    (Status.ABORTING, Status.ABORTED): True,
}
"""Transitions that may occur. Any other one is a defect."""

ENDING: Final = {True: Status.COMMITTING, False: Status.ABORTING}
ENDED: Final = {Status.COMMITTING: Status.COMMITTED, Status.ABORTING: Status.ABORTED}


@dataclass(slots=True)
class Transaction:
    """A transaction that has not ended everywhere."""

    id: TransactionId
    begun_ms: int
    """Wall-clock time at which it began."""
    timeout_ms: int
    owner: str = ""
    """Role that began it; empty if the client has proven none."""
    status: Status = Status.OPEN
    topics: dict[str, None] = field(default_factory=dict)
    """Topics that may have its messages, in the order in which they joined. The names are as the
    client gave them, since the client looks for these names in reports about the transaction. One
    topic may occur under two names."""
    subscriptions: dict[tuple[str, str], None] = field(default_factory=dict)
    """Pairs of topic and subscription on which it may have acknowledged messages."""

    @property
    def deadline_ms(self) -> int:
        return self.begun_ms + self.timeout_ms

    _text: str = field(default="", repr=False, compare=False)
    """The transaction as JSON; empty if it has changed since it was last encoded."""

    def changed(self) -> None:
        """Discard the encoded form after a change."""
        self._text = ""

    def text(self) -> str:
        """Return the transaction as JSON, encoded once after each change."""
        if not self._text:
            self._text = json.dumps(self.dump())
        return self._text

    def dump(self) -> Stored:
        return {
            "id": self.id.least,
            "begun_ms": self.begun_ms,
            "timeout_ms": self.timeout_ms,
            "owner": self.owner,
            "status": str(self.status),
            "topics": list(self.topics),
            "subscriptions": [list(each) for each in self.subscriptions],
        }


class CoordinatorState:
    """The transactions of one coordinator."""

    def __init__(self, number: int, *, finished_max: int) -> None:
        self.number = number
        self.transactions: dict[int, Transaction] = {}
        """Transactions that have not ended everywhere, by least bits, in the order in which they
        began."""
        self.finished: OrderedDict[int, bool] = OrderedDict()
        """Outcomes of the transactions that ended last: whether they were committed."""
        self._finished_max = finished_max
        self._next = 0

    # Questions

    @property
    def next_least(self) -> int:
        """Number of the next transaction."""
        return self._next

    @property
    def low_watermark(self) -> int:
        """Number up to which all transactions have ended everywhere; -1 if none has."""
        return next(iter(self.transactions), self._next) - 1

    def open(self, txn: TransactionId) -> Transaction:
        """Return a transaction that still accepts participants.

        Raises:
            TransactionNotFoundError, InvalidTransactionStatusError
        """
        found = self.transactions.get(txn.least)
        if found is None:
            self._check_known(txn)
            raise InvalidTransactionStatusError(f"transaction {txn} has ended")
        if found.status is not Status.OPEN:
            raise InvalidTransactionStatusError(f"transaction {txn} is {found.status}")
        return found

    def ending(self, txn: TransactionId, *, commits: bool) -> Transaction | None:
        """Return a transaction that may be ended in this way, or is ending so; None if it has ended
        so.

        Raises:
            TransactionNotFoundError
            InvalidTransactionStatusError: it ends, or has ended, the other way.
        """
        found = self.transactions.get(txn.least)
        wanted = ENDING[commits]
        if found is None:
            self._check_known(txn)
            if self.finished[txn.least] is not commits:
                raise InvalidTransactionStatusError(
                    f"transaction {txn} has ended, and is not {ENDED[wanted]}"
                )
        elif found.status not in (Status.OPEN, wanted):
            raise InvalidTransactionStatusError(
                f"transaction {txn} is {found.status}: it cannot be {ENDED[wanted]}"
            )
        return found

    def _check_known(self, txn: TransactionId) -> None:
        if txn.least not in self.finished:
            raise TransactionNotFoundError(
                f"coordinator {self.number} does not know transaction {txn}, or has forgotten it"
            )

    # Records

    def begin(self, *, now_ms: int, timeout_ms: int, owner: str) -> Stored:
        """Return the record of a new transaction."""
        return {
            "kind": "begin",
            "id": self._next,
            "begun_ms": now_ms,
            "timeout_ms": timeout_ms,
            "owner": owner,
        }

    def join(
        self,
        txn: TransactionId,
        topics: Iterable[str] = (),
        subscriptions: Iterable[tuple[str, str]] = (),
    ) -> Stored | None:
        """Return the record of additional participants; None if all of them have already joined.

        Raises:
            TransactionNotFoundError, InvalidTransactionStatusError: as for `open`.
        """
        found = self.open(txn)
        new_topics = [each for each in topics if each not in found.topics]
        new = [list(each) for each in subscriptions if each not in found.subscriptions]
        if not new_topics and not new:
            return None
        return {"kind": "join", "id": txn.least, "topics": new_topics, "subscriptions": new}

    def status(self, txn: TransactionId, status: Status) -> Stored:
        """Return the record of a new status."""
        return {"kind": "status", "id": txn.least, "status": str(status)}

    def snapshot_text(self) -> str:
        """Return the snapshot record as JSON, after which older records are not needed. It is cheap
        for transactions that are already encoded."""
        frame = {"kind": "snapshot", "next": self._next, "finished": list(self.finished.items())}
        every = ", ".join(each.text() for each in self.transactions.values())
        return f'{json.dumps(frame)[:-1]}, "transactions": [{every}]}}'

    def apply(self, record: Mapping[str, Any]) -> None:
        """Apply a record that was just written, or is being read."""
        match record["kind"]:
            case "begin":
                self._begin(record)
            case "nothing":
                pass
            case "join":
                found = self.transactions[record["id"]]
                found.changed()
                found.topics.update(dict.fromkeys(record["topics"]))
                found.subscriptions.update(
                    dict.fromkeys((topic, name) for topic, name in record["subscriptions"])
                )
            case "status":
                self._change(self.transactions[record["id"]], Status(record["status"]))
            case "snapshot":
                self._load(record)
            case kind:
                raise ValueError(f"a record of the unknown kind {kind!r}")

    def _begin(self, record: Mapping[str, Any]) -> None:
        least = record["id"]
        self.transactions[least] = Transaction(
            TransactionId(self.number, least),
            begun_ms=record["begun_ms"],
            timeout_ms=record["timeout_ms"],
            owner=record["owner"],
        )
        self._next = least + 1

    def _change(self, found: Transaction, status: Status) -> None:
        if (found.status, status) not in TRANSITIONS:
            raise InvariantError(f"transaction {found.id} is {found.status}: it cannot be {status}")
        found.status = status
        found.changed()
        if status in (Status.COMMITTED, Status.ABORTED):
            del self.transactions[found.id.least]
            self.finished[found.id.least] = status is Status.COMMITTED
            while len(self.finished) > self._finished_max:
                self.finished.popitem(last=False)

    def _load(self, record: Mapping[str, Any]) -> None:
        self._next = record["next"]
        self.finished = OrderedDict((least, done) for least, done in record["finished"])
        self.transactions = {}
        for each in record["transactions"]:
            self.transactions[each["id"]] = Transaction(
                TransactionId(self.number, each["id"]),
                begun_ms=each["begun_ms"],
                timeout_ms=each["timeout_ms"],
                owner=each["owner"],
                status=Status(each["status"]),
                topics=dict.fromkeys(each["topics"]),
                subscriptions=dict.fromkeys((topic, name) for topic, name in each["subscriptions"]),
            )
