"""A micro-batch waits for a minimum, but never for long."""

import pytest

from magnetar.arrow.stored.trigger_limits import BatchDelay, TriggerLimits, Unread, in_sum


class Time:
    """Passes when it is told to."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def monotonic_s(self) -> float:
        return self.now_s

    def wall_ms(self) -> int:
        return 0


NOTHING, LITTLE, ENOUGH = Unread(0, 0.0, 0), Unread(4, 40.0, 400), Unread(5, 50.0, 500)
LIMITS = TriggerLimits(entries_min=5, delay_s=60.0)


def begun(limits: TriggerLimits = LIMITS) -> tuple[BatchDelay, Time]:
    """Behind the first micro-batch of a process."""
    time = Time()
    delay = BatchDelay(limits, time)
    assert not delay.puts_off(LITTLE)
    return delay, time


def test_the_first_micro_batch_of_a_process_does_not_wait() -> None:
    """A query that is restarted often would read nothing otherwise."""
    time = Time()
    delay = BatchDelay(LIMITS, time)
    assert not delay.puts_off(NOTHING)
    assert not delay.puts_off(LITTLE)
    assert delay.puts_off(LITTLE)


def test_a_micro_batch_waits_until_its_first_message_has_waited_for_the_delay() -> None:
    delay, time = begun()
    time.now_s += 1_000  # nothing was there: nothing has waited
    assert not delay.puts_off(NOTHING)
    assert delay.puts_off(LITTLE)
    time.now_s += 59.9
    assert delay.puts_off(LITTLE)
    time.now_s += 0.1
    assert not delay.puts_off(LITTLE)
    assert delay.puts_off(LITTLE), "the next one waits anew"


def test_a_minimum_that_is_reached_ends_the_wait() -> None:
    delay, time = begun()
    assert delay.puts_off(LITTLE)
    time.now_s += 50
    assert not delay.puts_off(ENOUGH)
    assert delay.puts_off(LITTLE)
    time.now_s += 50
    assert delay.puts_off(LITTLE), "counted from the last micro-batch"


@pytest.mark.parametrize(
    "limits",
    [TriggerLimits(entries_min=5), TriggerLimits(messages_min=50), TriggerLimits(bytes_min=500)],
)
def test_a_minimum_is_of_entries_messages_or_bytes(limits: TriggerLimits) -> None:
    assert limits.has_minimum
    assert not limits.has_maximum
    assert limits.is_enough(ENOUGH)
    assert not limits.is_enough(LITTLE)
    assert limits.counts_messages is (limits.messages_min is not None)


def test_topics_count_together() -> None:
    assert in_sum({"a": LITTLE, "b": ENOUGH}) == Unread(9, 90.0, 900)
    assert in_sum({}) == NOTHING
