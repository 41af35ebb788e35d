"""Since when stored records can have been unused: none seems older than it is, and each ages."""

from collections.abc import Iterable

from hypothesis import given
from hypothesis import strategies as st
from structlog.testing import capture_logs

from magnetar.broker.topics.at_rest.births import Births
from tests.unit.cursors.doubles import StoppedClock

_DAY_S = 86_400


def births_by(clock: StoppedClock, *, remembered_max: int = 100) -> Births:
    return Births(clock, remembered_max=remembered_max)


def walk(
    births: Births, topics: Iterable[str], *, missed: Iterable[str] = (), is_whole: bool = True
) -> dict[str, float]:
    """One record per topic."""
    found = {topic: births.since_s(topic, "log") for topic in topics}
    for topic in missed:
        births.miss(topic)
    births.end(is_whole=is_whole)
    return found


def test_a_record_counts_from_the_walk_that_saw_it_first() -> None:
    clock = StoppedClock()
    births = births_by(clock)
    first = walk(births, ["old"])
    clock.now_s += 600
    second = walk(births, ["old", "copy"])
    assert second == {"old": first["old"], "copy": clock.now_s}
    clock.now_s += 600
    assert walk(births, ["old", "copy"]) == second


def test_what_a_whole_walk_did_not_see_is_forgotten() -> None:
    clock = StoppedClock()
    births = births_by(clock)
    walk(births, ["deleted"])
    walk(births, [])
    assert len(births) == 0
    clock.now_s += 600
    assert walk(births, ["deleted"]) == {"deleted": clock.now_s}


def test_a_walk_that_was_broken_off_forgets_nothing() -> None:
    clock = StoppedClock()
    births = births_by(clock)
    found = walk(births, ["one", "other"])
    clock.now_s += 600
    walk(births, ["one"], is_whole=False)
    assert walk(births, ["one", "other"]) == found


def test_a_topic_that_could_not_be_looked_at_keeps_its_age() -> None:
    clock = StoppedClock()
    births = births_by(clock)
    found = walk(births, ["one", "other"])
    for _ in range(3):
        clock.now_s += 600
        walk(births, ["one"], missed=["other"])
    assert walk(births, ["one", "other"]) == found
    walk(births, ["one"])
    assert len(births) == 1, "it is missed in those walks only"


def test_what_there_is_no_room_for_stays_new_and_the_log_says_so_once() -> None:
    clock = StoppedClock()
    births = births_by(clock, remembered_max=2)
    with capture_logs() as logged:
        first = walk(births, "abc")
        clock.now_s += 600
        second = walk(births, "abc")
    assert second == {"a": first["a"], "b": first["b"], "c": clock.now_s}
    assert len(births) == 2
    assert [each["event"] for each in logged] == ["topics_at_rest_not_remembered"]
    walk(births, "ac")
    third = walk(births, "ac")
    clock.now_s += 600
    assert walk(births, "ac") == third, "it has the place of one that is gone"


_STEPS = st.tuples(st.booleans(), st.floats(0, 20 * _DAY_S), st.booleans())


@given(st.lists(_STEPS, max_size=20))
def test_no_record_seems_older_than_it_is_or_gets_younger(
    steps: list[tuple[bool, float, bool]],
) -> None:
    clock = StoppedClock()
    births = births_by(clock)
    made_s: dict[str, float] = {}
    before: dict[str, float] = {}
    for is_made, later_s, is_whole in steps:
        clock.now_s += later_s
        if is_made:
            made_s[str(len(made_s))] = clock.now_s
            continue
        found = walk(births, made_s, is_whole=is_whole)
        assert all(found[name] >= made_s[name] for name in made_s)
        assert found | before == found
        before = found
