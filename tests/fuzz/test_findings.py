"""Memory that grows is a finding; memory that a process takes to become warm is none."""

from tests.fuzz.findings import WARM_UP_ROUNDS, Memory

_MB = 1_000_000


def _wrong(*megabytes: float) -> list[str | None]:
    """What is wrong with the rounds of one process."""
    memory = Memory()
    return [memory.see(round(each * _MB)) for each in megabytes]


def test_flat_memory_is_no_finding() -> None:
    assert set(_wrong(*[100] * 20)) == {None}


def test_a_process_may_grow_a_little_while_it_warms_up() -> None:
    assert set(_wrong(100, 104, 108, 112, 114)) == {None}
    assert _wrong(100, 116)[1] == "memory grew from 100 MB after the first round to 116 MB after 2"


def test_a_warm_process_may_have_a_tenth_more_than_it_had() -> None:
    warm = [100] * WARM_UP_ROUNDS
    assert set(_wrong(*warm, 110)) == {None}
    assert _wrong(*warm, 111)[-1] == "memory grew from 100 MB after 5 rounds to 111 MB after 6"


def test_what_it_had_is_the_most_of_its_warm_up() -> None:
    assert set(_wrong(100, 103, 102, 101, 100, 113)) == {None}


def test_growth_that_is_small_in_each_round_is_a_finding_in_the_end() -> None:
    wrong = _wrong(*range(100, 120))
    assert [each is None for each in wrong] == [True] * 15 + [False] * 5


def test_another_process_is_compared_with_itself() -> None:
    memory = Memory()
    assert memory.see(100 * _MB) is None
    memory.begin()
    assert memory.see(200 * _MB) is None
    assert memory.see(220 * _MB) is None
    assert str(memory) == "memory first/max/end 100/220/220 MB"
