"""What the drill of a rolling upgrade is made of. `make chaos ROLLING=1` plays it, each night."""

import subprocess
from pathlib import Path

import pytest

from tests.chaos.cluster.checker import Message
from tests.chaos.cluster.records import key_of
from tests.chaos.rolling.older import NoHistoryError, Older
from tests.chaos.rolling.stage import is_of_older, put_log_away
from tests.chaos.rolling.stock import MESSAGES, missing, wrong_of_keys
from tests.processes import ROOT


def test_a_folder_without_history_is_told_from_a_broken_promise(tmp_path: Path) -> None:
    with pytest.raises(NoHistoryError, match="needs a clone of the repository with its history"):
        Older(tmp_path / "older", repository=tmp_path)


def test_a_history_without_the_commit_is_told_as_well(tmp_path: Path) -> None:
    subprocess.run(["git", "init", "-q", str(tmp_path)], check=True)
    with pytest.raises(NoHistoryError, match="no source archive, and no shallow clone"):
        Older(tmp_path / "older", repository=tmp_path)


def test_code_that_is_not_the_older_one_is_noticed(tmp_path: Path) -> None:
    """Without folders of its own, `magnetar` would be that of the working tree."""
    root = tmp_path / "repository"
    for component in ("ledger", "bookie", "cursors", "sdk", "broker", "deploy"):
        (root / component).mkdir(parents=True)
        (root / component / "nothing").touch()
    identity = ["-c", "user.name=n", "-c", "user.email=n@n", "-c", "commit.gpgsign=false"]
    for command in (["init", "-q"], ["add", "."], [*identity, "commit", "-qm", "empty"]):
        subprocess.run(["git", *command], cwd=root, check=True)
    older = Older(tmp_path / "older", commit="HEAD", repository=root)
    with pytest.raises(NoHistoryError, match=f"cannot be used here: {ROOT}"):
        older.check()


def test_what_is_gone_or_changed_is_told_and_what_came_on_top_is_not() -> None:
    before = {"policies": {"ttl": 60, "quota": None}, "topics": ["b", "a"]}
    assert list(missing(before, {**before, "topics": ["a", "b"], "more": 1})) == []
    assert list(missing(before, {"policies": {"ttl": 60, "new": 1}, "topics": ["a", "b"]})) == []
    changed = {"policies": {"ttl": 61}, "topics": ["a"]}
    assert list(missing(before, changed)) == [
        "policies/ttl: there was 60, there is 61",
        "topics: there was ['b', 'a'], there is ['a']",
    ]
    assert list(missing(before, {"topics": ["a", "b"]})) == [
        "policies/ttl: there was 60, there is None"
    ]


def test_a_key_out_of_order_and_a_lost_message_are_told() -> None:
    everything = list(range(MESSAGES))
    other_keys_first = sorted(everything, key=lambda number: number % 7)
    assert wrong_of_keys(everything) == wrong_of_keys(other_keys_first) == []
    assert "key 1 has [8, 1" in wrong_of_keys([8, *(each for each in everything if each != 8)])[0]
    assert "there are [1, 2" in wrong_of_keys(everything[1:])[0]


def test_logs_of_both_codes_are_kept_apart(tmp_path: Path) -> None:
    path = tmp_path / "broker-1.log"
    put_log_away(path, is_older=True)  # It has not begun yet.
    for code in (True, False, True):
        path.write_text("x")
        put_log_away(path, is_older=code)
    (tmp_path / "broker-11.log").write_text("of another")
    path.write_text("now")
    names = sorted(each.name for each in tmp_path.glob("*.log") if not is_of_older(each))
    assert names == ["broker-1.1.present.log", "broker-1.log", "broker-11.log"]
    assert len(list(tmp_path.glob("broker-1.*older.log"))) == 2


def test_a_key_belongs_to_one_producer() -> None:
    keys = {
        name: {key_of(Message(name, number)) for number in range(100)} for name in ("p-1", "p-2")
    }
    assert len(keys["p-1"]) > 1
    assert not keys["p-1"] & keys["p-2"]
