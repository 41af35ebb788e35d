"""A gauge that rises is noticed, one that swings is not."""

from tests.soak.gauges import Bounds, Sample, growth, levels, rising


def samples(memory: list[float], *, files: float = 20.0) -> list[Sample]:
    return [
        Sample(at_s=10.0 * at, memory_mib=value, descriptors=40.0, threads=20.0, files=files)
        for at, value in enumerate(memory)
    ]


def test_a_straight_line_has_its_own_rise() -> None:
    assert growth([0.0, 1.0, 2.0], [5.0, 6.0, 7.0]) == 2.0
    assert growth([0.0, 1.0, 2.0], [7.0, 6.0, 5.0]) == -2.0


def test_one_sample_or_one_moment_says_nothing() -> None:
    assert growth([3.0], [5.0]) == 0.0
    assert growth([3.0, 3.0], [5.0, 9.0]) == 0.0


def test_what_is_reached_in_the_first_half_is_no_growth() -> None:
    warm = [100.0 + at for at in range(50)] + [150.0] * 60
    assert rising(samples(warm), Bounds()) == []


def test_memory_that_goes_on_rising_is_noticed() -> None:
    (found,) = rising(samples([100.0 + 0.1 * at for at in range(100)]), Bounds())
    assert found.startswith("memory_mib grows by 4.9")


def test_two_mebibytes_are_allowed_and_no_more() -> None:
    line = [100.0 + 0.04 * at for at in range(101)]  # 2.0 over the last fifty steps
    assert rising(samples(line), Bounds()) == []
    assert rising(samples(line), Bounds(memory_mib=1.9)) != []


def test_saw_teeth_are_no_growth() -> None:
    assert rising(samples([100.0 + at % 8 for at in range(200)]), Bounds()) == []


def test_levels_tell_first_most_and_last() -> None:
    found = levels(samples([100.0, 140.0, 120.0]))["memory_mib"]
    assert (found["first"], found["most"], found["last"]) == (100.0, 140.0, 120.0)
