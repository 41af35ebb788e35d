"""Pauses between attempts."""

import random

from magnetar.sdk.session import Backoff


def test_pauses_double_up_to_the_bound_and_begin_again() -> None:
    backoff = Backoff(min_s=0.1, max_s=1.0, random=random.Random(1))
    pauses = [backoff.next_s() for _ in range(6)]
    for pause, nominal in zip(pauses, (0.1, 0.2, 0.4, 0.8, 1.0, 1.0), strict=True):
        assert 0.8 * nominal <= pause <= nominal
    backoff.reset()
    assert backoff.next_s() <= 0.1
