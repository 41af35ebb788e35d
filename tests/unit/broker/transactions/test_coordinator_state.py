"""The core of a coordinator: states, ids, records."""

import json
from typing import Any

import pytest

from magnetar.broker.features.transactions.coordinator_state import (
    ENDED,
    TRANSITIONS,
    CoordinatorState,
    Status,
)
from magnetar.broker.features.transactions.errors import (
    InvalidTransactionStatusError,
    TransactionNotFoundError,
)
from magnetar.broker.features.transactions.ids import TransactionId
from magnetar.ledger.errors import InvariantError


class Written:
    """A coordinator and the log of its records."""

    def __init__(self, *, finished_max: int = 100) -> None:
        self.finished_max = finished_max
        self.state = CoordinatorState(3, finished_max=finished_max)
        self.log: list[str] = []

    def write(self, record: dict[str, Any]) -> None:
        self.state.apply(record)
        self.log.append(json.dumps(record))

    def begin(self) -> TransactionId:
        record = self.state.begin(now_ms=1000, timeout_ms=50, owner="me")
        self.write(record)
        return TransactionId(3, record["id"])

    def change(self, txn: TransactionId, *statuses: Status) -> None:
        for status in statuses:
            self.write(self.state.status(txn, status))

    def read_again(self, log: list[str] | None = None) -> CoordinatorState:
        state = CoordinatorState(3, finished_max=self.finished_max)
        for record in self.log if log is None else log:
            state.apply(json.loads(record))
        return state


def test_numbers_grow_and_are_not_used_again_after_a_crash_or_a_snapshot() -> None:
    written = Written()
    first, second = written.begin(), written.begin()
    assert (first.least, second.least) == (0, 1)
    written.change(second, Status.ABORTING, Status.ABORTED)
    assert written.read_again().begin(now_ms=0, timeout_ms=1, owner="")["id"] == 2
    snapshot = [written.state.snapshot_text()]
    assert written.read_again(snapshot).begin(now_ms=0, timeout_ms=1, owner="")["id"] == 2


@pytest.mark.parametrize("before", Status)
@pytest.mark.parametrize("after", Status)
def test_a_status_follows_another_only_as_the_table_says(before: Status, after: Status) -> None:
    ways = {
        Status.OPEN: (),
        Status.COMMITTING: (Status.COMMITTING,),
        Status.ABORTING: (Status.ABORTING,),
    }
    if before not in ways:
        assert not any(one is before for one, _ in TRANSITIONS), "an end is an end"
        return
    written = Written()
    txn = written.begin()
    written.change(txn, *ways[before])
    if (before, after) in TRANSITIONS:
        written.change(txn, after)
        assert (txn.least in written.state.transactions) is (after not in ENDED.values())
    else:
        with pytest.raises(InvariantError):
            written.change(txn, after)


def test_participants_join_an_open_transaction_once() -> None:
    written = Written()
    txn = written.begin()
    record = written.state.join(txn, ["a", "b"], [("a", "s")])
    assert record is not None
    written.write(record)
    assert written.state.join(txn, ["b"], [("a", "s")]) is None
    more = written.state.join(txn, ["b", "c"])
    assert more is not None
    assert more["topics"] == ["c"]
    written.change(txn, Status.COMMITTING)
    with pytest.raises(InvalidTransactionStatusError):
        written.state.join(txn, ["d"])


def test_an_end_can_be_asked_for_again_but_not_the_other_way() -> None:
    written = Written()
    txn = written.begin()
    assert written.state.ending(txn, commits=True) is not None
    written.change(txn, Status.COMMITTING)
    assert written.state.ending(txn, commits=True) is not None
    with pytest.raises(InvalidTransactionStatusError):
        written.state.ending(txn, commits=False)
    written.change(txn, Status.COMMITTED)
    assert written.state.ending(txn, commits=True) is None
    with pytest.raises(InvalidTransactionStatusError):
        written.state.ending(txn, commits=False)
    with pytest.raises(TransactionNotFoundError):
        written.state.ending(TransactionId(3, 77), commits=True)


def test_only_the_last_outcomes_are_remembered() -> None:
    written = Written(finished_max=2)
    ended = [written.begin() for _ in range(3)]
    for txn in ended:
        written.change(txn, Status.ABORTING, Status.ABORTED)
    with pytest.raises(TransactionNotFoundError):
        written.state.ending(ended[0], commits=False)
    assert written.state.ending(ended[2], commits=False) is None


def test_the_low_watermark_is_below_the_oldest_that_has_not_ended() -> None:
    written = Written()
    assert written.state.low_watermark == -1
    first, second = written.begin(), written.begin()
    assert written.state.low_watermark == -1
    written.change(second, Status.COMMITTING, Status.COMMITTED)
    assert written.state.low_watermark == -1
    written.change(first, Status.COMMITTING)
    assert written.state.low_watermark == -1
    written.change(first, Status.COMMITTED)
    assert written.state.low_watermark == 1


def test_a_snapshot_is_as_good_as_all_records() -> None:
    written = Written()
    for number in range(5):
        txn = written.begin()
        record = written.state.join(txn, [f"t{number}"], [(f"t{number}", "s")])
        assert record is not None
        written.write(record)
        if number % 2:
            written.change(txn, Status.COMMITTING)
        if number == 3:
            written.change(txn, Status.COMMITTED)
    of_all = written.read_again()
    of_snapshot = written.read_again([written.state.snapshot_text()])
    assert of_all.transactions == of_snapshot.transactions == written.state.transactions
    assert of_all.finished == of_snapshot.finished
    assert of_all.next_least == of_snapshot.next_least
