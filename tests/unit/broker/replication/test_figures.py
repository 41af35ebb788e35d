"""Rates and the delay of copies."""

from magnetar.broker.features.replication.figures import CopyFigures

NOW = 1_700_000_000_000


def test_rates_are_averages_since_the_sample_before_the_last() -> None:
    figures = CopyFigures(NOW)
    figures.messages_out, figures.bytes_out, figures.expired_entries = 10, 1000, 5
    assert figures.rates(NOW + 10_000) == (1.0, 100.0, 0.5)
    figures.sample(NOW + 29_999, 30)
    figures.sample(NOW + 30_000, 30)
    figures.sample(NOW + 60_000, 30)
    assert figures.rates(NOW + 60_000) == (0.0, 0.0, 0.0)


def test_a_topic_that_is_never_behind_has_no_delay() -> None:
    figures = CopyFigures(NOW)
    figures.came_on(NOW - 1000)
    assert figures.delay_s(NOW, NOW - 9000) == 0


def test_the_delay_counts_from_the_first_missing_message_and_not_from_later_ones() -> None:
    figures = CopyFigures(NOW)
    figures.fell_behind(NOW)
    figures.fell_behind(NOW + 5_000)
    assert figures.delay_s(NOW + 6_000) == 6


def test_a_publish_time_of_a_clock_that_is_wrong_is_not_believed() -> None:
    figures = CopyFigures(NOW)
    figures.fell_behind(NOW)
    assert figures.delay_s(NOW + 6_000, oldest_published_ms=1) == 6
    assert figures.delay_s(NOW + 6_000, oldest_published_ms=NOW + 10**9) == 0


def test_who_comes_on_is_less_far_behind_and_who_catches_up_is_not() -> None:
    figures = CopyFigures(NOW)
    figures.fell_behind(NOW)
    figures.came_on(NOW + 4_000)
    assert figures.delay_s(NOW + 6_000) == 2
    figures.caught_up()
    assert not figures.is_behind
    assert figures.delay_s(NOW + 6_000) == 0
