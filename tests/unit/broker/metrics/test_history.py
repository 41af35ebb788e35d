"""The last hour of each topic, in bounded memory: rings that wrap, rooms that are given on."""

from magnetar.broker.http.history import added
from magnetar.broker.http.metrics.history import (
    ABSENCE_S_MAX,
    FIELDS,
    POINT_BYTES,
    RING_OVERHEAD_BYTES,
    SPAN_S,
    History,
)

INTERVAL_S = SPAN_S / 4
"""Four points are an hour."""
RING_BYTES = 4 * POINT_BYTES + RING_OVERHEAD_BYTES


def _history(topics: int, *, interval_s: float = INTERVAL_S) -> History[str]:
    ring_bytes = round(SPAN_S / interval_s) * POINT_BYTES + RING_OVERHEAD_BYTES
    return History(bytes_max=(topics + 1) * ring_bytes, interval_s=interval_s)


def _sample(history: History[str], now_ms: int, **rates: float) -> None:
    history.begin()
    for name, rate in rates.items():
        history.add(name, (rate, 2 * rate, 0.0, 0.0, 10 * rate))
    history.finish(now_ms)


def test_the_points_of_the_last_hour_are_kept_and_older_ones_go() -> None:
    history = _history(2)
    for number in range(1, 7):
        _sample(history, number, a=number)
    kept = history.of("a")
    assert kept.points["msgRateIn"] == [3, 4, 5, 6]
    assert kept.points["msgRateOut"] == [6, 8, 10, 12]
    assert kept.points["msgBacklog"] == [30, 40, 50, 60]
    assert (kept.ended_ms, kept.interval_ms) == (6, INTERVAL_S * 1000)
    assert set(kept.points) == set(FIELDS)


def test_before_a_topic_was_busy_and_while_it_is_not_loaded_there_are_zeros() -> None:
    history = _history(2, interval_s=ABSENCE_S_MAX)
    _sample(history, 1, a=0)
    assert history.rings == 0
    _sample(history, 2, a=5)
    _sample(history, 3)
    assert history.of("a").points["msgRateIn"] == [0, 5, 0]
    assert history.whole().points["msgRateIn"] == [0, 5, 0]


def test_the_broker_adds_up_all_topics_those_without_a_ring_as_well() -> None:
    history = _history(1)
    _sample(history, 1, a=1, b=2, c=3)
    assert history.whole().points["msgRateIn"] == [6]
    assert history.rings == history.rings_max == 1
    assert (history.of("a").is_left_out, history.of("b").is_left_out) == (False, True)
    assert history.of("b").points == {}


def test_a_topic_that_was_quiet_for_the_whole_hour_gives_its_room_to_another() -> None:
    history = _history(1)
    _sample(history, 1, a=1)
    for number in range(2, 6):
        _sample(history, number, a=0)
    _sample(history, 6, b=2)
    assert history.rings == 1
    assert history.of("b").points["msgRateIn"][-1] == 2
    assert history.of("a").points == {}


def test_topics_that_are_gone_do_not_keep_their_room_for_the_whole_hour() -> None:
    history = _history(100, interval_s=ABSENCE_S_MAX / 5)
    for number in range(50):
        _sample(history, number, steady=1, **{f"short-lived-{number}": 1})
        assert history.rings <= 1 + 1 + 5
    assert history.of("short-lived-44").points["msgRateIn"][-6:] == [1, 0, 0, 0, 0, 0]
    assert history.of("short-lived-43").points == {}
    assert history.of("steady").points["msgRateIn"] == [1] * 50


def test_with_less_memory_than_one_ring_nothing_is_kept() -> None:
    for bytes_max in (0, RING_BYTES - 1):
        history: History[str] = History(bytes_max=bytes_max, interval_s=INTERVAL_S)
        _sample(history, 1, a=1)
        assert not history.is_on
        assert history.whole().shown()["points"] == history.of("a").shown()["points"] == {}


def test_plots_of_partitions_are_added_from_their_ends() -> None:
    def part(ended_ms: int, *values: float) -> dict[str, object]:
        points = {"msgRateIn": list(values)} if values else {}
        return {"endedMs": ended_ms, "intervalMs": 60, "points": points, "isLeftOut": not values}

    found = added([part(5, 1, 2, 3), part(7, 10), part(6)])
    assert found["points"] == {"msgRateIn": [1, 2, 13]}
    assert (found["endedMs"], found["intervalMs"], found["isLeftOut"]) == (7, 60, True)
    assert added([])["points"] == {}
