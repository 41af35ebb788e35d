"""What a consumer has: a mapping like any other, and a small one."""

import random
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from magnetar.broker.topic.dispatch.pending import PendingEntries, PendingIndex
from magnetar.ledger.position import Position


def test_it_is_a_mapping_in_log_order() -> None:
    pending = PendingEntries()
    pending[Position(2, 0)] = 5
    pending[Position(1, 1000)] = 1 << 52
    pending[Position(1, 31)] = 0
    pending[Position(1, 32)] = 7
    assert list(pending.items()) == [((1, 31), 0), ((1, 32), 7), ((1, 1000), 1 << 52), ((2, 0), 5)]
    assert Position(1, 31) in pending
    assert Position(1, 30) not in pending
    assert Position(3, 0) not in pending
    with pytest.raises(KeyError):
        pending[Position(1, 30)]
    with pytest.raises(KeyError):
        del pending[Position(1, 30)]
    assert pending.pop(Position(1, 31)) == 0
    assert len(pending) == 3
    pending.clear()
    assert not pending


def test_many_of_a_ledger_are_put_at_once() -> None:
    pending = PendingEntries()
    pending.put(1, [], [])
    assert pending._ledgers == {}
    pending.put(1, [30, 31, 32, 31], [5, 6, 0, 7])
    assert dict(pending) == {Position(1, 30): 5, Position(1, 31): 7, Position(1, 32): 0}
    assert len(pending) == 3


def test_what_is_taken_twice_or_was_never_there_is_told_apart() -> None:
    pending = PendingEntries()
    pending.update({Position(1, each): each for each in range(4)})
    asked = [Position(1, 2), Position(1, 2), Position(9, 0), Position(1, -1), Position(1, 0)]
    assert pending.take(asked) == [2, -1, -1, -1, 0]
    assert dict(pending) == {Position(1, 1): 1, Position(1, 3): 3}


def test_it_agrees_with_a_dict_over_many_changes() -> None:
    dice = random.Random(1)
    pending, plain = PendingEntries(), dict[Position, int]()
    for _ in range(20_000):
        position = Position(dice.randrange(3), dice.randrange(200))
        if dice.random() < 0.5:
            pending[position] = plain[position] = dice.randrange(1 << 52)
        else:
            assert pending.pop(position, None) == plain.pop(position, None)
        assert len(pending) == len(plain)
        if len(plain) % 20 == 0:
            assert pending.first() == min(plain, default=None)
    assert pending == plain
    assert list(pending) == sorted(plain)
    assert pending.take(list(plain)) == list(plain.values())
    assert pending._ledgers == {}


def test_with_every_second_entry_acknowledged_the_others_are_small() -> None:
    count = 20_000
    tracemalloc.start()
    pending = PendingEntries()
    for entry_id in range(0, 2 * count, 2):
        pending[Position(1, entry_id)] = 1
    size, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert size / count < 40


class _Owner:
    """Somebody who has entries."""

    def __init__(self, index: PendingIndex) -> None:
        self.entries = PendingEntries()
        self.entries.join(index, self)


@given(
    st.lists(
        st.tuples(st.sampled_from(["put", "take", "clear"]), st.integers(0, 3), st.integers(0, 99)),
        max_size=60,
    )
)
def test_the_index_knows_who_has_an_entry(steps: list[tuple[str, int, int]]) -> None:
    index = PendingIndex()
    everybody = [_Owner(index) for _ in range(4)]
    owners: dict[int, _Owner] = {}
    for step, number, entry_id in steps:
        position, owner = Position(1, entry_id), everybody[number]
        if step == "put" and entry_id not in owners:
            owner.entries[position] = 5
            owners[entry_id] = owner
        elif step == "take":
            owner.entries.take((position,))
            if owners.get(entry_id) is owner:
                del owners[entry_id]
        elif step == "clear":
            owner.entries.clear()
            owners = {each: of for each, of in owners.items() if of is not owner}
    assert {each: index.owner(Position(1, each)) for each in range(100)} == {
        each: owners.get(each) for each in range(100)
    }
    for owner in everybody:
        owner.entries.clear()
    assert not index._held
