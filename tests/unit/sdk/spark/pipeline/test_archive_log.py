"""What the commits of an archive say together."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from magnetar.sdk.spark.errors import ArchiveError
from magnetar.sdk.spark.pipeline.archive import choose_groups
from magnetar.sdk.spark.pipeline.archive_log import (
    UNKNOWN_DAY,
    ArchiveState,
    Commit,
    DataFile,
    Watermark,
    commit_name,
    encode_commit,
    encode_state,
    fold,
    number_of,
)


def _file(path: str, size: int = 1, topic: str = "t", day: str = "2013-01-01") -> DataFile:
    return DataFile(path, topic, day, 10, size)


_COMMITS = (
    Commit(
        add=(_file("a"), _file("b")), query="q", batch_id=0, watermarks={"t": Watermark(1, 5, -1)}
    ),
    Commit(add=(_file("c"),), query="q", batch_id=1, watermarks={"t": Watermark(1, 9, 3)}),
    Commit(add=(_file("d"),), remove=frozenset({"a", "c"})),
)


def _folded(commits: tuple[Commit, ...]) -> ArchiveState:
    return fold((number, encode_commit(commit)) for number, commit in enumerate(commits))


def test_a_log_read_back_says_what_was_committed() -> None:
    state = ArchiveState()
    for commit in _COMMITS:
        state = state.after(commit)
    assert _folded(_COMMITS) == state
    assert set(state.files) == {"b", "d"}
    assert state.watermarks == {"t": Watermark(1, 9, 3)}
    assert state.rows == 20


def test_a_batch_is_held_once_it_is_committed_and_stays_so_over_compactions() -> None:
    state = _folded(_COMMITS)
    assert state.holds("q", 0)
    assert state.holds("q", 1)
    assert not state.holds("q", 2)
    assert not state.holds("another", 0)


def test_a_state_stands_for_all_commits_before_it() -> None:
    state = _folded(_COMMITS)
    again = fold([(state.next_commit, encode_state(state))])
    assert again.files == state.files
    assert again.watermarks == state.watermarks
    assert again.holds("q", 1)
    assert again.next_commit == state.next_commit + 1
    more = fold(
        [
            (3, encode_state(state)),
            (4, encode_commit(Commit(add=(_file("e"),), query="q", batch_id=2))),
        ]
    )
    assert set(more.files) == {"b", "d", "e"}


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        ({1: encode_commit(_COMMITS[0])}, "commit 0 of the archive's log is missing"),
        ({0: "{"}, "commit 0 of the archive's log is damaged"),
        ({0: json.dumps({"version": 1})}, "damaged"),
        ({0: json.dumps({"version": 2})}, "has version 2; this release reads 1"),
        ({0: encode_commit(Commit(remove=frozenset({"x"})))}, "removes x, which is not there"),
        ({n: encode_commit(Commit(add=(_file("x"),))) for n in (0, 1)}, "adds x a second time"),
    ],
)
def test_a_log_that_makes_no_sense_is_refused(texts: dict[int, str], message: str) -> None:
    with pytest.raises(ArchiveError, match=message):
        fold(texts.items())


def _damaged(value: Any) -> Iterator[Any]:
    """Yield copies of a JSON value, each with one part of another type."""
    yield from (None, True, 1, "x", "1:2", [], [1], {}, {"x": 1})
    if isinstance(value, dict):
        for name, part in value.items():
            yield from ({**value, name: other} for other in _damaged(part))
    elif isinstance(value, list):
        for at, part in enumerate(value):
            yield from ([*value[:at], other, *value[at + 1 :]] for other in _damaged(part))


@pytest.mark.parametrize("text", [encode_commit(_COMMITS[0]), encode_state(_folded(_COMMITS[:2]))])
def test_a_commit_with_a_part_of_another_type_is_refused_or_usable(text: str) -> None:
    refused = 0
    for body in _damaged(json.loads(text)):
        try:
            state = fold([(0, json.dumps(body))])
        except ArchiveError:
            refused += 1
            continue
        assert encode_state(state)
        assert state.rows + state.size_bytes >= 0
        assert all(each < Watermark(9, 9, 9) for each in state.watermarks.values())
        assert not state.holds("another", 0)
    assert refused > 50


def test_a_log_with_a_file_of_no_day_can_be_read() -> None:
    """Older releases wrote it for messages whose time of publishing is out of range."""
    body = json.loads(encode_commit(_COMMITS[0]))
    body["add"][0]["day"] = None
    state = fold([(0, json.dumps(body))])
    assert [each.day for each in state.files.values()] == [UNKNOWN_DAY, "2013-01-01"]
    assert fold([(1, encode_state(state))]).files == state.files


@pytest.mark.parametrize(
    ("name", "value"), [("batch", []), ("batch", None), ("remove", "ab"), ("remove", {"a": 1})]
)
def test_a_batch_or_a_removal_of_another_type_is_not_passed_over(name: str, value: object) -> None:
    body = {**json.loads(encode_commit(_COMMITS[0])), name: value}
    with pytest.raises(ArchiveError, match=f"commit 0 of the archive's log is damaged: {name} is "):
        fold([(0, json.dumps(body))])


def test_names_of_commits_are_read_back_and_others_are_passed_over() -> None:
    assert number_of(commit_name(12)) == 12
    assert [number_of(name) for name in (".00000012.json.5f", "x.json", "12.crc", "12")] == [
        None
    ] * 4


def test_small_files_of_one_topic_and_day_are_put_together_up_to_the_size_of_one() -> None:
    small = [_file(f"{number}", 30) for number in range(5)]
    others = [_file("large", 50), _file("other day", 1, day="2013-01-02"), _file("u", 1, topic="u")]
    assert choose_groups([*small, *others], 100, 3) == [small[:3]]
    assert choose_groups([*small, *others], 100, 4) == []
    assert choose_groups(others, 100, 2) == []
