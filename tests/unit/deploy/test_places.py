from pathlib import Path

import pytest

from magnetar.deploy.errors import DataDirectoryError, ForeignCookieError
from magnetar.deploy.places import assign_ids
from magnetar.deploy.standalone import holds_files


def test_a_new_place_gets_the_id_of_its_own_name() -> None:
    assignment = assign_ids(
        {"bookie-1": None, "bookie-2": None}, is_registered=lambda _: False, losses_max=0
    )
    assert assignment.ids == {"bookie-1": "bookie-1", "bookie-2": "bookie-2"}
    assert assignment.lost == ()


def test_a_place_with_a_cookie_keeps_the_id_of_its_cookie() -> None:
    assignment = assign_ids({"bookie-1": "bookie-1.4"}, is_registered=lambda _: True, losses_max=0)
    assert assignment.ids == {"bookie-1": "bookie-1.4"}


def test_a_wiped_place_goes_on_under_an_id_that_was_never_used() -> None:
    assignment = assign_ids(
        {"bookie-1": "bookie-1", "bookie-2": None},
        is_registered={"bookie-1", "bookie-2", "bookie-2.1"}.__contains__,
        losses_max=1,
    )
    assert assignment.ids["bookie-2"] == "bookie-2.2"
    assert assignment.lost == ("bookie-2.1",)


def test_more_losses_than_recovery_can_do_without_are_refused() -> None:
    with pytest.raises(DataDirectoryError, match=r"bookie-1, bookie-2 are gone"):
        assign_ids(
            {"bookie-1": None, "bookie-2": None, "bookie-3": "bookie-3"},
            is_registered=lambda each: "." not in each,
            losses_max=1,
        )


def test_the_files_of_another_place_are_refused() -> None:
    with pytest.raises(ForeignCookieError, match="bookie-1"):
        assign_ids({"bookie-2": "bookie-1"}, is_registered=lambda _: True, losses_max=1)


def test_a_place_that_is_lost_too_often_is_refused() -> None:
    with pytest.raises(DataDirectoryError, match="check the disk"):
        assign_ids({"bookie-1": None}, is_registered=lambda _: True, losses_max=1)


def test_files_without_a_cookie_are_not_to_be_thrown_away() -> None:
    with pytest.raises(DataDirectoryError, match=r"bookie-1 in --data has files") as caught:
        assign_ids(
            {"bookie-1": None},
            is_registered=lambda each: "." not in each,
            losses_max=0,
            has_files=lambda place: place == "bookie-1",
        )
    assert "empty" not in str(caught.value)
    assert "restore the file 'cookie'" in str(caught.value)


def test_a_directory_that_cannot_be_listed_does_not_count_as_empty(tmp_path: Path) -> None:
    """Else the advice were to begin with an empty directory."""
    assert not holds_files(tmp_path)
    assert not holds_files(tmp_path / "missing")
    (tmp_path / ".hidden").write_bytes(b"")
    assert holds_files(tmp_path)
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    with pytest.raises(OSError, match="symbolic links"):
        holds_files(tmp_path / "loop")
