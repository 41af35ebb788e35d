"""The event loop that is held is seen to be late."""

import asyncio
import time

from magnetar.deploy.process_metrics import LoopWatch
from magnetar.ledger.flight_recorder import LOOP, FlightRecorder

HELD_S = 0.03


def hold_the_loop(seconds: float = HELD_S) -> None:
    until_s = time.monotonic() + seconds
    while time.monotonic() < until_s:
        pass


async def test_a_callback_that_holds_the_loop_makes_it_late() -> None:
    watch = LoopWatch(interval_s=0.001)
    watch.start()
    hold_the_loop()
    await asyncio.sleep(0.001)  # Due after the stroke that was due meanwhile.
    watch.stop()
    assert watch.lateness_s.total >= HELD_S - 0.002
    (family,) = watch.collect()
    assert family.name == "magnetar_event_loop_lateness_seconds"
    counts = {sample.labels.get("le"): sample.value for sample in family.samples}
    assert counts["+Inf"] - counts["0.01"] >= 1


async def test_what_held_the_loop_is_the_cause_in_the_flight_recorder() -> None:
    recorder = FlightRecorder()
    watch = LoopWatch(interval_s=0.001, recorder=recorder)
    watch.start()
    hold_the_loop(0.2)
    await asyncio.sleep(0.001)
    watch.stop()
    (moment, *_) = recorder.moments(kind=LOOP)
    assert moment.milliseconds >= 190
    assert moment.cause.startswith("hold_the_loop (test_loop_watch.py:")


async def test_a_stopped_watch_strikes_no_more() -> None:
    watch = LoopWatch(interval_s=0.001)
    watch.start()
    watch.stop()
    await asyncio.sleep(0.005)
    assert watch.lateness_s.count == 0
