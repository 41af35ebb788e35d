"""When a ledger of a log is full."""

import random
from dataclasses import dataclass

import pytest

from magnetar.ledger.managed_log.log_appender import LedgerFullness
from magnetar.ledger.settings import LogConfig

CONFIG = LogConfig(
    ledger_entries_max=100, ledger_bytes_max=1000, ledger_age_min_s=10, ledger_age_max_s=60
)


@dataclass
class FixedClock:
    now_s: float = 5.0

    def monotonic_s(self) -> float:
        return self.now_s

    def boot_s(self) -> float:
        return self.now_s

    def wall_ms(self) -> int:
        raise AssertionError("a ledger's age is no matter of the wall clock")


@dataclass
class Ledger:
    entries_added: int = 0
    bytes_added: int = 0


@pytest.mark.parametrize(
    ("ledger", "age_s", "is_full"),
    [
        (Ledger(99, 999), 59, False),
        (Ledger(100, 0), 10, True),
        (Ledger(100, 0), 9.9, False),
        (Ledger(1, 1000), 10, True),
        (Ledger(1, 1000), 9.9, False),
        (Ledger(10**6, 10**9), 9.9, False),
        (Ledger(1, 1), 63, True),
        (Ledger(1, 1), 59.9, False),
    ],
)
def test_a_ledger_is_full_by_entries_by_bytes_or_by_age(
    ledger: Ledger, age_s: float, is_full: bool
) -> None:
    clock = FixedClock()
    fullness = LedgerFullness(CONFIG, clock=clock, random=random.Random(1))
    clock.now_s += age_s
    assert fullness.is_newly_full(ledger) is is_full


def test_it_is_said_once_of_each_ledger() -> None:
    clock = FixedClock()
    fullness = LedgerFullness(CONFIG, clock=clock, random=random.Random(1))
    clock.now_s += 20
    assert fullness.is_newly_full(Ledger(100, 0))
    assert not fullness.is_newly_full(Ledger(200, 0))
    fullness.begin()
    assert not fullness.is_newly_full(Ledger(200, 0)), "it is young"
    clock.now_s += 20
    assert fullness.is_newly_full(Ledger(200, 0))


def test_the_maximum_age_is_spread() -> None:
    def full_at(seed: int) -> float:
        clock = FixedClock(0.0)
        fullness = LedgerFullness(CONFIG, clock=clock, random=random.Random(seed))
        while not fullness.is_newly_full(Ledger(1, 1)):
            clock.now_s += 0.01
        return clock.now_s

    ages = [full_at(seed) for seed in range(20)]
    assert min(ages) >= 60
    assert max(ages) <= 63.1
    assert len(set(ages)) > 10
