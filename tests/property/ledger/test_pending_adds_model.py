"""The queue of unconfirmed adds against a plain model, under any order of answers and changes.

The model keeps, for each entry, the set of members that hold it, and knows nothing of runs or bits.
"""

from dataclasses import dataclass, field

from hypothesis import given
from hypothesis import strategies as st

from magnetar.ledger.quorum import write_set
from magnetar.ledger.writing.add_pipeline import PendingAdds
from magnetar.ledger.writing.add_turn import PendingAdd


@dataclass
class Model:
    """Entries by id, and what was released."""

    ensemble_size: int
    write_quorum: int
    ack_quorum: int
    holders: list[set[int]] = field(default_factory=list)
    deniers: list[set[int]] = field(default_factory=list)
    released: int = 0
    is_frozen: bool = False

    def members(self, entry_id: int) -> tuple[int, ...]:
        return write_set(entry_id, ensemble_size=self.ensemble_size, write_quorum=self.write_quorum)

    def release(self) -> int:
        """Rule 4.1: the longest done prefix; nothing during a change (D9)."""
        while (
            not self.is_frozen
            and self.released < len(self.holders)
            and len(self.holders[self.released]) >= self.ack_quorum
        ):
            self.released += 1
        return self.released

    def is_lost(self, entry_id: int) -> bool:
        return len(self.deniers[entry_id]) > self.write_quorum - self.ack_quorum


@st.composite
def configurations(draw: st.DrawFn) -> tuple[int, int, int]:
    ensemble_size = draw(st.integers(1, 5))
    write_quorum = draw(st.integers(1, ensemble_size))
    return ensemble_size, write_quorum, draw(st.integers(1, write_quorum))


steps = st.lists(
    st.tuples(
        st.sampled_from(["push", "ack", "ack", "ack", "fail", "freeze", "revoke"]),
        st.integers(0, 30),
        st.integers(0, 4),
    ),
    max_size=60,
)


@given(configurations(), steps)
def test_the_queue_releases_exactly_what_the_rules_allow(
    quorums: tuple[int, int, int], todo: list[tuple[str, int, int]]
) -> None:
    ensemble_size, write_quorum, ack_quorum = quorums
    model = Model(*quorums)
    pending = PendingAdds(
        ensemble_size=ensemble_size, write_quorum=write_quorum, ack_quorum=ack_quorum
    )
    adds: list[PendingAdd] = []
    for what, number, member in todo:
        if what == "push":
            # With E = Qw a run of entries has one write set; with striping it is one entry.
            count = number % 3 + 1 if ensemble_size == write_quorum else 1
            first = len(model.holders)
            add = PendingAdd(
                first,
                first + count - 1,
                content=b"",
                size_bytes=count,
                length_after=first + count,
                callbacks=[],
            )
            pending.push(add)
            adds.append(add)
            model.holders += [set() for _ in range(count)]
            model.deniers += [set() for _ in range(count)]
        elif what == "freeze":
            model.is_frozen = pending.is_frozen = not pending.is_frozen
        elif what == "revoke":
            index = member % ensemble_size
            pending.revoke([index])
            for entry_id in range(model.released, len(model.holders)):
                model.holders[entry_id].discard(index)
                model.deniers[entry_id].discard(index)
        elif adds:
            _answer(pending, adds[number % len(adds)], member % ensemble_size, what, model)
        _check(pending, adds, model)


def _answer(pending: PendingAdds, add: PendingAdd, index: int, what: str, model: Model) -> None:
    entries = range(add.first_entry_id, add.last_entry_id + 1)
    is_member = index in model.members(add.first_entry_id)
    assert pending.belongs_to(add, index) is is_member
    if not is_member or add.is_released:
        return  # nobody asked it, or it does not matter any more
    if what == "ack":
        pending.on_ack([add], index)
        for entry_id in entries:
            model.holders[entry_id].add(index)
            model.deniers[entry_id].discard(index)
    else:
        for entry_id in entries:
            if index not in model.holders[entry_id]:
                model.deniers[entry_id].add(index)
        is_lost = pending.on_failure(add, index)
        if index not in model.holders[add.first_entry_id]:
            assert is_lost is model.is_lost(add.first_entry_id)


def _check(pending: PendingAdds, adds: list[PendingAdd], model: Model) -> None:
    released = pending.release()
    before = model.released
    model.release()
    ids = [each for add in released for each in range(add.first_entry_id, add.last_entry_id + 1)]
    assert ids == list(range(before, model.released))
    waiting = [add for add in adds if not add.is_released]
    assert list(pending) == waiting
    assert len(pending) == len(waiting)
    assert pending.pending_bytes == len(model.holders) - model.released
    assert pending.first_unreleased == model.released
    for add in waiting:
        assert pending.is_done(add) is (len(model.holders[add.first_entry_id]) >= model.ack_quorum)
    lost = next((add for add in waiting if model.is_lost(add.first_entry_id)), None)
    assert pending.first_lost() is lost
