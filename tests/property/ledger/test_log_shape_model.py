"""Position arithmetic equals that of the plain list of all entries."""

from hypothesis import given
from hypothesis import strategies as st

from magnetar.ledger.managed_log.log_extent import LogShape
from magnetar.ledger.position import Position

sizes = st.lists(st.integers(0, 4), min_size=1, max_size=6)


@given(sizes, st.integers(-1, 15), st.integers(-1, 6), st.integers(-1, 15), st.integers(-1, 6))
def test_the_shape_equals_the_list_of_entries(
    entries: list[int], ledger_a: int, entry_a: int, ledger_b: int, entry_b: int
) -> None:
    ledgers = [(2 * at, count) for at, count in enumerate(entries)]
    shape = LogShape(ledgers)
    model = [Position(ledger, entry) for ledger, count in ledgers for entry in range(count)]
    end = Position(ledgers[-1][0], ledgers[-1][1])
    a, b = Position(ledger_a, entry_a), Position(ledger_b, entry_b)
    assert shape.next_position(a) == next((p for p in model if p > a), end)
    assert shape.first_at_or_after(a) == next((p for p in model if p >= a), end)
    before = [p for p in model if p < a]
    assert shape.previous_position(a) == (before[-1] if before else Position(0, -1))
    assert shape.entries_between(a, b) == sum(a < p <= b for p in model)
    assert shape.last_confirmed == (model[-1] if model else Position(ledgers[-1][0], -1))
