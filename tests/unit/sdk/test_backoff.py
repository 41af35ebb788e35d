import random

from magnetar.sdk.backoff import Backoff


def test_pauses_double_up_to_the_bound_and_begin_again() -> None:
    backoff = Backoff(min_s=0.1, max_s=1.0, random=random.Random(1))
    pauses = [backoff.next_s() for _ in range(6)]
    for pause, nominal in zip(pauses, (0.1, 0.2, 0.4, 0.8, 1.0, 1.0), strict=True):
        assert 0.8 * nominal <= pause <= nominal
    backoff.reset()
    assert backoff.next_s() <= 0.1


def test_without_random_pauses_are_exact() -> None:
    backoff = Backoff(min_s=0.25, max_s=1.0)
    assert [backoff.next_s() for _ in range(4)] == [0.25, 0.5, 1.0, 1.0]


def test_a_backoff_tells_its_next_pause_and_whether_it_took_one() -> None:
    backoff = Backoff(min_s=0.5, max_s=2.0)
    assert (backoff.following_s, backoff.has_paused) == (0.5, False)
    backoff.next_s()
    assert (backoff.following_s, backoff.has_paused) == (1.0, True)
    backoff.reset()
    assert (backoff.following_s, backoff.has_paused) == (0.5, False)
