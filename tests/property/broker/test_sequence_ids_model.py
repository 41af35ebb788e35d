"""The sequence ids of producers against a plain model: whatever is sent again, and fails to be."""

from hypothesis import given
from hypothesis import strategies as st

from magnetar.broker.features.deduplication.sequence_ids import SequenceIds, Verdict

_BATCHES = st.lists(
    st.tuples(
        st.sampled_from(["p", "q"]),
        st.lists(st.tuples(st.integers(0, 30), st.integers(0, 6)), min_size=1, max_size=5),
        st.booleans(),
    ),
    max_size=40,
)


@given(_BATCHES)
def test_each_id_is_stored_once_and_in_order_however_batches_are_taken(
    batches: list[tuple[str, list[tuple[int, int]], bool]],
) -> None:
    ids = SequenceIds()
    stored: dict[str, list[int]] = {"p": [], "q": []}
    pending: list[tuple[str, int, int]] = []
    """Accepted and not stored: name, lowest, highest."""

    def settle() -> None:
        for name, lowest, highest in pending:
            ids.on_stored(name, highest)
            stored[name].append(lowest)
            stored[name].append(highest)
        pending.clear()

    for now_s, (name, messages, settles) in enumerate(batches):
        lows = [low for low, _ in messages]
        highs = [low + more if more else 0 for low, more in messages]
        before = {each: ids.last_of(each) for each in stored}
        highest = ids.accept(name, lows, highs, now_s)
        if highest >= 0:
            # Exactly what judging one by one would have said.
            assert lows[0] > before[name]
            pending += [(name, low, max(low, high)) for low, high in zip(lows, highs, strict=True)]
            assert highest == max(lows[-1], highs[-1]) == ids.last_of(name)
        else:
            assert ids.last_of(name) == before[name]
            for low, high in zip(lows, highs, strict=True):
                accepted, known = ids.last_of(name), max(stored[name], default=-1)
                verdict = ids.judge(name, low, high, now_s)
                if low > accepted:
                    assert verdict is Verdict.NEW
                    pending.append((name, low, max(low, high)))
                elif low <= known:
                    assert verdict is Verdict.DUPLICATE
                else:
                    assert verdict is Verdict.UNDECIDED
        other = "q" if name == "p" else "p"
        assert ids.last_of(other) == before[other]
        if settles:
            settle()
            assert ids.is_settled("p")
            assert ids.is_settled("q")
    settle()
    for name, numbers in stored.items():
        assert numbers == sorted(numbers)
        assert len(set(numbers[::2])) == len(numbers) // 2
        snapshot = ids.snapshot(names_max=9, bytes_max=1 << 20)
        assert snapshot.get(name, -1) == max(numbers, default=-1)
