"""What became of a commit; which files are merged; which snapshots go."""

import itertools

import pytest

from magnetar.arrow.iceberg.commits import (
    CompactionLimits,
    ExpiryLimits,
    FileSize,
    Head,
    Outcome,
    SnapshotAge,
    expired_snapshots,
    file_groups,
    outcome_of,
)
from magnetar.arrow.iceberg.watermark import Mark

PLANNED = Head(1, {"t": Mark(1, 1)}, frozenset({"before"}))
LIMITS = CompactionLimits(rows_max=100, file_bytes=1_000, files_min=3)
KEEP = ExpiryLimits(age_ms=100, count_min=2, count_max=5, at_once_max=3)


def test_a_commit_whose_answer_was_lost_is_known_by_its_token() -> None:
    found = Head(2, {"t": Mark(1, 5)}, frozenset({"before", "mine"}))
    assert outcome_of("mine", PLANNED, found) is Outcome.DONE


def test_it_is_known_also_when_others_have_committed_since() -> None:
    found = Head(9, {"t": Mark(7, 7)}, frozenset({"mine", "other"}))
    assert outcome_of("mine", PLANNED, found) is Outcome.DONE


def test_another_archiver_that_moved_the_watermark_was_faster() -> None:
    found = Head(2, {"t": Mark(1, 5)}, frozenset({"before", "other"}))
    assert outcome_of("mine", PLANNED, found) is Outcome.OVERTAKEN
    rolled_back = Head(0, {}, frozenset())
    assert outcome_of("mine", PLANNED, rolled_back) is Outcome.OVERTAKEN


def test_a_commit_that_left_the_watermark_alone_is_no_obstacle() -> None:
    compacted = Head(2, PLANNED.watermark, frozenset({"before", "other"}))
    assert outcome_of("mine", PLANNED, compacted) is Outcome.OPEN
    assert outcome_of("mine", PLANNED, PLANNED) is Outcome.OPEN


def test_two_writers_and_lost_answers_add_every_batch_once() -> None:
    """All orders of two writers' steps, with each answer lost or not."""
    for order in set(itertools.permutations("aabb")):
        for lost in itertools.product((False, True), repeat=2):
            _play(order, dict(zip("ab", lost, strict=True)))


def _play(order: tuple[str, ...], loses: dict[str, bool]) -> None:
    """Each writer plans the next entry, then commits it; the table takes a commit only on the
    snapshot that it was planned on."""
    table, added = Head(0, {"t": Mark(0, 0)}), list[int]()
    planned: dict[str, Head] = {}
    for writer in order:
        if writer not in planned:
            planned[writer] = table
            continue
        plan = planned[writer]
        entry = plan.watermark["t"].entry_id + 1
        if table.snapshot_id == plan.snapshot_id:
            added.append(entry)
            number = (table.snapshot_id or 0) + 1
            table = Head(number, {"t": Mark(0, entry)}, table.tokens | {f"{writer}{entry}"})
            expected = Outcome.DONE
        else:
            expected = Outcome.OVERTAKEN
        if loses[writer] or expected is Outcome.OVERTAKEN:
            assert outcome_of(f"{writer}{entry}", plan, table) is expected
    assert added == list(range(1, len(added) + 1))


def files(*rows: int, partition: str = "p") -> list[FileSize]:
    return [FileSize(f"{partition}{n}", partition, count, count) for n, count in enumerate(rows)]


def test_small_files_are_merged_when_there_are_enough() -> None:
    assert file_groups(files(1, 1), LIMITS) == []
    assert file_groups(files(1, 1, 1), LIMITS) == [["p0", "p1", "p2"]]


def test_a_file_of_half_the_size_is_small_and_a_larger_one_is_not() -> None:
    assert file_groups(files(50, 1, 1), LIMITS) == [["p0", "p1", "p2"]]
    assert file_groups(files(51, 1, 1), LIMITS) == []


def test_merged_files_keep_to_both_limits() -> None:
    assert file_groups(files(50, 50, 50, 50, 1), LIMITS) == [["p0", "p1"], ["p2", "p3"]]
    large = [FileSize(f"f{n}", "p", 1, 400) for n in range(3)]
    assert file_groups(large, LIMITS) == [["f0", "f1"]]


def test_partitions_stay_apart() -> None:
    found = file_groups([*files(1, 1, 1), *files(1, 1, partition="q")], LIMITS)
    assert found == [["p0", "p1", "p2"]]


def snapshots(*times_ms: int) -> list[SnapshotAge]:
    return [SnapshotAge(number, each) for number, each in enumerate(times_ms)]


def test_old_snapshots_go_and_the_newest_ones_stay_however_old() -> None:
    assert expired_snapshots(snapshots(0, 10, 20, 30), (), KEEP, now_ms=1_000) == [0, 1]


def test_young_snapshots_stay() -> None:
    assert expired_snapshots(snapshots(0, 10, 20), (), KEEP, now_ms=100) == []
    assert expired_snapshots(snapshots(0, 10, 20), (), KEEP, now_ms=101) == [0]


def test_there_are_never_more_than_so_many() -> None:
    assert expired_snapshots(snapshots(*range(6)), (), KEEP, now_ms=6) == [0]


def test_what_branches_name_and_what_has_the_watermark_stays() -> None:
    assert expired_snapshots(snapshots(0, 10, 20, 30), (0,), KEEP, now_ms=1_000) == [1]


@pytest.mark.parametrize(("count", "expected"), [(5, 3), (6, 3)])
def test_so_many_go_at_once(count: int, expected: int) -> None:
    found = expired_snapshots(snapshots(*range(count)), (), KEEP, now_ms=1_000)
    assert found == list(range(expected))
