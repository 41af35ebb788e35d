"""The order of appends over two ledgers, without any ledger."""

from collections.abc import Sequence

from magnetar.ledger.errors import LogError
from magnetar.ledger.managed_log.log_appender import AppendOrder, PendingAppend


class Batch:
    def __init__(self, name: str, entries: int) -> None:
        self.name = name
        self.payloads: Sequence[bytes] = [b"x"] * entries

    def on_appended(self, ledger_id: int, first_entry_id: int) -> None:
        raise AssertionError("the core tells nobody")

    def on_failed(self, error: LogError) -> None:
        raise AssertionError("the core tells nobody")


def sent(order: AppendOrder, name: str, ledger_id: int, first: int, entries: int) -> PendingAppend:
    pending = PendingAppend(Batch(name, entries), ledger_id)
    pending.first_entry_id = first
    order.push(pending)
    return pending


def name_of(pending: PendingAppend) -> str:
    assert isinstance(pending.batch, Batch)
    return pending.batch.name


def taken(order: AppendOrder) -> list[str]:
    names = []
    while (pending := order.take_done()) is not None:
        names.append(name_of(pending))
    return names


def test_rule_9_2_what_is_done_waits_for_everything_before_it() -> None:
    order = AppendOrder()
    a, b, c = (sent(order, name, 4 + at, 0, 1) for at, name in enumerate("abc"))
    assert not order.take_next(c)
    assert not order.take_next(b)
    assert taken(order) == []
    assert order.take_next(a)
    assert taken(order) == ["b", "c"]
    assert len(order) == 0
    assert not order.has_sent


def test_the_next_outcome_may_be_one_of_the_ledger_before() -> None:
    order = AppendOrder()
    a = sent(order, "a", 4, 0, 1)
    sent(order, "b", 5, 0, 1)
    assert order.is_next_of(4)
    assert not order.is_next_of(5)
    assert order.take_next(a)
    assert order.is_next_of(5)


def test_a_closed_ledger_holds_some_a_part_of_one_and_not_the_rest() -> None:
    order = AppendOrder()
    for at, name in enumerate("abc"):
        sent(order, name, 4, 2 * at, 2)
    held, is_torn = order.settle(4, 2)
    assert [name_of(each) for each in held] == ["a"]
    assert is_torn, "b lies at entries 2 and 3"
    assert [batch.name for batch in order.take_all() if isinstance(batch, Batch)] == ["b", "c"]


def test_a_closed_ledger_that_ends_between_two_appends_tears_none() -> None:
    order = AppendOrder()
    for at, name in enumerate("abc"):
        sent(order, name, 4, 2 * at, 2)
    held, is_torn = order.settle(4, 3)
    assert [name_of(each) for each in held] == ["a", "b"]
    assert not is_torn
    held, is_torn = order.settle(4, -1)
    assert held == []
    assert not is_torn


def test_settling_a_ledger_leaves_the_appends_to_others_alone() -> None:
    order = AppendOrder()
    sent(order, "a", 4, 0, 1)
    sent(order, "b", 5, 0, 1)
    held, is_torn = order.settle(4, 10)
    assert [name_of(each) for each in held] == ["a"]
    assert not is_torn
    assert len(order) == 1


def test_everything_is_taken_in_order_and_counts_for_nothing_any_more() -> None:
    order = AppendOrder()
    sent(order, "a", 4, 0, 3)
    held = sent(order, "b", 5, 0, 2)
    order.hold(held)
    order.wait(Batch("c", 1), 1)
    assert (order.held_bytes, order.waiting_bytes, len(order)) == (2, 1, 3)
    names = [batch.name for batch in order.take_all() if isinstance(batch, Batch)]
    assert names == ["a", "b", "c"]
    assert (order.held_bytes, order.waiting_bytes, len(order)) == (0, 0, 0)
