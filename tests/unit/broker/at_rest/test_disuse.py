"""Since when topics are out of use: never longer than they are, whatever is forgotten."""

from hypothesis import given
from hypothesis import strategies as st

from magnetar.broker.topics.at_rest.disuse import Disuse
from magnetar.sdk.wire import parse_topic_name

NAMES = [parse_topic_name(f"topic-{number}") for number in range(5)]


def test_a_topic_that_was_never_here_rests_since_the_start() -> None:
    assert Disuse(100.0, remembered_max=2).since_s(NAMES[0]) == 100.0


def test_a_topic_rests_since_it_was_closed_and_no_more_names_are_kept_than_may_be() -> None:
    disuse = Disuse(100.0, remembered_max=2)
    for number, name in enumerate(NAMES[:3]):
        disuse.came_to_rest(name, 200.0 + number)
    assert len(disuse) == 2
    assert [disuse.since_s(name) for name in NAMES[:4]] == [200.0, 201.0, 202.0, 200.0]


@given(
    st.lists(st.tuples(st.sampled_from(NAMES), st.floats(0, 100)), max_size=20), st.integers(1, 4)
)
def test_no_topic_is_taken_for_longer_unused_than_it_is(
    uses: list[tuple[object, float]], remembered_max: int
) -> None:
    disuse = Disuse(0.0, remembered_max=remembered_max)
    last: dict[object, float] = {}
    now_s = 0.0
    for name, later_s in uses:
        now_s += later_s
        disuse.came_to_rest(name, now_s)  # type: ignore[arg-type]
        last[name] = now_s
    assert len(disuse) <= remembered_max
    for name, used_s in last.items():
        assert disuse.since_s(name) >= used_s  # type: ignore[arg-type]
