"""When stored records came into being: no record seems older than it is, whatever clocks say."""

from hypothesis import given
from hypothesis import strategies as st

from magnetar.broker.topics.at_rest.births import Births
from tests.unit.cursors.doubles import StoppedClock

_DAY_S = 86_400
YEAR_S = 365 * _DAY_S
_ROUNDING_S = 0.01
"""Stored times are whole milliseconds."""


class SetClock(StoppedClock):
    """A clock whose wall time can be set."""

    def __init__(self) -> None:
        super().__init__()
        self.ahead_s = 2e9

    def wall_ms(self) -> int:
        return int((self.now_s + self.ahead_s) * 1000)


def walk(births: Births, records: dict[str, int]) -> dict[str, float]:
    births.begin()
    found = {name: births.since_s(name, (time_ms,)) for name, time_ms in records.items()}
    births.end(is_whole=True)
    return found


def test_in_the_first_walk_the_stored_time_decides() -> None:
    clock = SetClock()
    births = Births(clock)
    begun_s, begun_ms = clock.now_s, clock.wall_ms()
    clock.now_s += 20 * _DAY_S
    found = walk(births, {"old": begun_ms - 5_000, "young": begun_ms + 7_000, "mute": 0})
    assert (found["old"] - begun_s, found["young"] - begun_s) == (-5, 7)
    assert found["mute"] == clock.now_s


def test_a_time_is_translated_by_the_clock_before_it_was_set() -> None:
    clock = SetClock()
    births = Births(clock)
    clock.now_s += 20 * _DAY_S
    made_s, made_ms = clock.now_s, clock.wall_ms()
    for set_s in (YEAR_S, -YEAR_S):
        clock.ahead_s += set_s
        births.begin()
        assert births.since_s(f"set by {set_s}", (made_ms,)) >= made_s
        births.end(is_whole=False)


def test_what_a_whole_walk_did_not_see_is_new_whatever_it_says() -> None:
    clock = SetClock()
    births = Births(clock)
    first = walk(births, {"old": 17})
    clock.now_s += 600
    second = walk(births, {"old": 17, "copy": 17})
    assert second == {"old": first["old"], "copy": clock.now_s}
    clock.now_s += 600
    assert walk(births, {"old": 17, "copy": 17}) == second


def test_what_was_in_use_during_the_walks_is_not_new() -> None:
    clock = SetClock()
    births = Births(clock)
    made_s, made_ms = clock.now_s, clock.wall_ms()
    walk(births, {})
    clock.now_s += 600
    births.begin()
    assert births.since_s("used", (made_ms,), was_in_use=True) == made_s
    assert births.since_s("mute", (0,), was_in_use=True) == clock.now_s


def test_a_walk_that_was_broken_off_forgets_nothing() -> None:
    clock = SetClock()
    births = Births(clock)
    records = {"one": 0, "other": 0}
    found = walk(births, records)
    clock.now_s += 600
    births.begin()
    births.since_s("one", (0,))
    births.end(is_whole=False)
    assert walk(births, records) == found


def test_no_more_records_are_remembered_than_may_be_and_then_their_times_decide() -> None:
    clock = SetClock()
    births = Births(clock, remembered_max=2)
    made_ms = clock.wall_ms()
    records = {str(number): made_ms for number in range(3)}
    found = walk(births, records)
    assert len(births) == 2
    clock.now_s += 600
    assert walk(births, records) == found
    assert len(births) == 2
    assert walk(births, {"0": made_ms}) == {"0": found["0"]}
    assert len(births) == 1


_STEPS = st.tuples(
    st.sampled_from(("make", "walk", "set")),
    st.floats(0, 20 * _DAY_S),
    st.integers(-1, 1 << 62),
    st.sampled_from((-YEAR_S, -3600, 3600, YEAR_S)),
)


@given(st.lists(_STEPS, max_size=20), st.booleans())
def test_nothing_that_is_made_between_walks_seems_older_than_it_is(
    steps: list[tuple[str, float, int, float]], is_stamped: bool
) -> None:
    """Stamped by the broker's own clock, which may be set; or by anything after the first walk."""
    clock = SetClock()
    births = Births(clock)
    records: dict[str, int] = {}
    made_s: dict[str, float] = {}
    if not is_stamped:
        walk(births, records)
    for kind, later_s, time_ms, set_s in steps:
        clock.now_s += later_s
        if kind == "set":
            clock.ahead_s += set_s
            walk(births, records)
        elif kind == "walk":
            before = walk(births, records)
            assert all(before[name] >= made_s[name] - _ROUNDING_S for name in records)
            assert walk(births, records) == before
        else:
            name = str(len(records))
            records[name] = clock.wall_ms() if is_stamped else time_ms
            made_s[name] = clock.now_s
