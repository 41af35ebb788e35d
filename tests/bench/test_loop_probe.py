"""A probe on a loop, asked at the worst moments."""

import asyncio
import time

from tests.bench.loop_probe import Probe

_TURN_S = 0.02


def _compute() -> None:
    began_s = time.thread_time()
    while time.thread_time() - began_s < _TURN_S:
        pass


async def test_a_long_turn_is_seen_by_a_question_that_comes_before_the_next_stroke() -> None:
    probe = Probe()
    probe.start()
    _compute()
    assert probe.take().lateness_ms["cpu_max"] >= _TURN_S * 1000
    assert probe.take().lateness_ms["cpu_max"] < _TURN_S * 1000


async def test_a_long_turn_is_seen_by_a_question_that_comes_later() -> None:
    probe = Probe()
    probe.start()
    await asyncio.sleep(0)
    _compute()
    await asyncio.sleep(0.005)  # a stroke comes between
    assert probe.take().lateness_ms["cpu_max"] >= _TURN_S * 1000
