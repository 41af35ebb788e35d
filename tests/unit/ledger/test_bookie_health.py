"""Bookies that are kept out of new ensembles, and for how long."""

from magnetar.ledger.writing.replacements import BookieHealth


class ManualClock:
    def __init__(self) -> None:
        self.now_s = 0.0

    def monotonic_s(self) -> float:
        return self.now_s

    def boot_s(self) -> float:
        return self.now_s

    def wall_ms(self) -> int:
        return 0


def test_a_bookie_is_avoided_after_so_many_errors_within_the_interval() -> None:
    clock = ManualClock()
    health = BookieHealth(clock, errors_max=2, interval_s=60, quarantine_s=100)
    health.on_error("b1")
    assert not health.quarantined()
    clock.now_s = 60.0
    health.on_error("b1")
    assert list(health.quarantined()) == ["b1"]


def test_errors_far_apart_do_not_add_up() -> None:
    clock = ManualClock()
    health = BookieHealth(clock, errors_max=2, interval_s=60, quarantine_s=100)
    for at_s in (0.0, 61.0, 122.0):
        clock.now_s = at_s
        health.on_error("b1")
    assert not health.quarantined()


def test_a_quarantine_ends() -> None:
    clock = ManualClock()
    health = BookieHealth(clock, errors_max=1, interval_s=60, quarantine_s=100)
    health.on_error("b2")
    health.on_error("b1")
    assert list(health.quarantined()) == ["b1", "b2"]
    clock.now_s = 100.0
    assert not health.quarantined()
