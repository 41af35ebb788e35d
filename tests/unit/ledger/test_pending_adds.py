"""What may be confirmed, and when."""

import pytest

from magnetar.ledger.errors import InvariantError
from magnetar.ledger.writing.add_pipeline import PendingAdds
from magnetar.ledger.writing.add_turn import PendingAdd


def queue_of(*runs: tuple[int, int]) -> tuple[PendingAdds, list[PendingAdd]]:
    pending = PendingAdds(ensemble_size=3, write_quorum=3, ack_quorum=2)
    adds = [
        PendingAdd(first, last, content=b"", size_bytes=10, length_after=last, callbacks=[])
        for first, last in runs
    ]
    for add in adds:
        pending.push(add)
    return pending, adds


def test_an_add_is_released_at_its_ack_quorum() -> None:
    pending, (add,) = queue_of((0, 4))
    pending.on_ack([add], 0)
    assert pending.release() == []
    pending.on_ack([add], 2)
    assert pending.release() == [add]
    assert pending.pending_bytes == 0


@pytest.mark.parametrize("runs", [[(1, 1)], [(0, 1), (3, 3)], [(0, 1), (1, 2)]])
def test_an_add_that_does_not_follow_the_last_one_is_refused(runs: list[tuple[int, int]]) -> None:
    with pytest.raises(InvariantError):
        queue_of(*runs)


def test_the_same_bookie_counts_once() -> None:
    pending, (add,) = queue_of((0, 0))
    pending.on_ack([add], 1)
    pending.on_ack([add], 1)
    assert pending.release() == []


def test_rule_4_1_adds_are_released_in_order_only() -> None:
    pending, (first, second) = queue_of((0, 0), (1, 1))
    for index in range(3):
        pending.on_ack([second], index)
    assert pending.release() == []
    pending.on_ack([first], 0)
    pending.on_ack([first], 1)
    assert pending.release() == [first, second]


def test_an_add_is_lost_only_when_its_ack_quorum_cannot_be_reached() -> None:
    pending, (add,) = queue_of((0, 0))
    assert not pending.on_failure(add, 0)
    assert not pending.on_failure(add, 0)
    assert pending.on_failure(add, 1)


def test_a_failure_after_an_acknowledgement_takes_nothing_back() -> None:
    pending, (add,) = queue_of((0, 0))
    pending.on_ack([add], 0)
    assert not pending.on_failure(add, 0)
    assert not pending.on_failure(add, 1)
    pending.on_ack([add], 2)
    assert pending.release() == [add]


def test_drain_leaves_nothing_behind() -> None:
    pending, adds = queue_of((0, 0), (1, 5))
    assert pending.drain() == adds
    assert len(pending) == 0
    assert pending.pending_bytes == 0
