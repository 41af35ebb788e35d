from pathlib import Path

import pytest

from magnetar.bookie.disks.disk_states import (
    DiskLevel,
    DiskUse,
    Usage,
    is_allowed,
    judge,
    next_level,
)
from magnetar.bookie.settings import BookieSettings

FREE, ALMOST, FULL = DiskLevel.FREE, DiskLevel.ALMOST_FULL, DiskLevel.FULL
SETTINGS = BookieSettings(
    data_directory=Path("data"),
    disk_full_share=0.95,
    disk_warn_share=0.90,
    disk_low_water_share=0.92,
)


def used(percent: float) -> Usage:
    return Usage(free=round((100 - percent) * 1000), total=100_000)


@pytest.mark.parametrize(
    ("before", "percent", "after"),
    [
        (FREE, 0, FREE),
        (FREE, 89.9, FREE),
        (FREE, 90, ALMOST),
        (FREE, 94.9, ALMOST),
        (FREE, 95, FULL),
        (FREE, 100, FULL),
        (ALMOST, 89.9, FREE),
        (ALMOST, 94.9, ALMOST),
        (ALMOST, 95, FULL),
        (FULL, 100, FULL),
        (FULL, 95, FULL),
        (FULL, 94.9, FULL),
        (FULL, 92, FULL),
        (FULL, 91.9, ALMOST),
        (FULL, 89.9, FREE),
    ],
)
def test_the_level_follows_the_table(before: DiskLevel, percent: float, after: DiskLevel) -> None:
    assert next_level(before, used(percent), SETTINGS) is after


def test_a_low_water_mark_below_the_warning_is_kept_to() -> None:
    settings = SETTINGS.model_copy(update={"disk_low_water_share": 0.80})
    assert next_level(FULL, used(85), settings) is FULL
    assert next_level(FULL, used(79), settings) is FREE


def test_a_use_that_rises_and_falls_around_the_threshold_does_not_flutter() -> None:
    level, changes = FREE, 0
    for percent in (94, 95.5, 94.5, 95.5, 93, 94, 96, 92.5, 91, 93, 94.9):
        after = next_level(level, used(percent), SETTINGS)
        changes += after is not level and FULL in (level, after)
        level = after
    assert changes == 2  # full once, and free once


def test_a_file_system_without_a_size_is_full() -> None:
    assert next_level(FREE, Usage(0, 0), SETTINGS) is FULL


@pytest.mark.parametrize(
    ("level", "allowed"),
    [
        (FREE, set(DiskUse)),
        (ALMOST, {DiskUse.ADDS, DiskUse.MINOR_COMPACTION}),
        (FULL, set()),
    ],
)
def test_what_may_be_written_follows_the_table(level: DiskLevel, allowed: set[DiskUse]) -> None:
    assert {use for use in DiskUse if is_allowed(level, use)} == allowed


@pytest.mark.parametrize(
    ("levels", "is_one_enough", "is_read_only"),
    [
        ([FREE, ALMOST], True, False),
        ([FREE, FULL], True, True),
        ([FREE, FULL], False, False),
        ([FULL, FULL], False, True),
        ([FULL], False, True),
    ],
)
def test_full_directories_make_the_bookie_read_only(
    levels: list[DiskLevel], is_one_enough: bool, is_read_only: bool
) -> None:
    usages = [used(50)] * len(levels)
    verdict = judge(levels, usages, is_one_enough=is_one_enough, recovery_bytes_min=0)
    assert verdict.is_read_only is is_read_only
    assert verdict.full == {i for i, level in enumerate(levels) if level is FULL}


def test_recovery_adds_need_their_room_in_every_directory() -> None:
    usages = [Usage(500, 1000), Usage(100, 1000)]
    for least, is_taken in ((100, True), (101, False)):
        verdict = judge([FULL, FULL], usages, is_one_enough=True, recovery_bytes_min=least)
        assert verdict.takes_recovery_adds is is_taken
