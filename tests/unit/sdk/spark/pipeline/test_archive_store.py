"""What jobs that were killed have left goes, and what is in the archive stays; on plain files."""

import shutil
from pathlib import Path
from typing import Any

import pytest

from magnetar.sdk.spark.errors import ArchiveBusyError
from magnetar.sdk.spark.pipeline import archive_store
from magnetar.sdk.spark.pipeline.archive_log import (
    COMMITS_PER_STATE,
    Commit,
    DataFile,
    commit_name,
    encode_commit,
)
from magnetar.sdk.spark.pipeline.archive_store import ArchiveStore


class PlainStorage:
    """A `Storage` without Spark."""

    def __init__(self, _spark: object, root: str) -> None:
        self._root = Path(root)

    def names(self, directory: str) -> list[str]:
        path = self._root / directory
        return sorted(each.name for each in path.iterdir()) if path.exists() else []

    def read(self, path: str) -> str:
        return (self._root / path).read_text()

    def create(self, path: str, text: str) -> None:
        target = self._root / path
        if target.exists():
            raise ArchiveBusyError("another job")
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text)

    def delete(self, path: str) -> None:
        target = self._root / path
        if target.is_dir():
            shutil.rmtree(target)
        else:
            target.unlink(missing_ok=True)


@pytest.fixture
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(archive_store, "Storage", PlainStorage)
    return tmp_path


def opened(directory: Path) -> ArchiveStore:
    spark: Any = None
    return ArchiveStore(spark, str(directory))


def written(directory: Path, store: ArchiveStore, *topics: str) -> tuple[DataFile, ...]:
    """As a micro-batch does before its commit."""
    place = store.new_directory()
    files = tuple(
        DataFile(f"{place}/topic={topic}/day=d/part.parquet", topic, "d", 1, 1) for topic in topics
    )
    for each in files:
        (directory / each.path).parent.mkdir(parents=True)
        (directory / each.path).write_text("rows")
    return files


def on_disk(directory: Path) -> set[str]:
    return {str(each.relative_to(directory)) for each in directory.rglob("*.parquet")}


def test_a_directory_that_no_commit_names_goes(directory: Path) -> None:
    store = opened(directory)
    kept = written(directory, store, "a")
    store.commit(Commit(add=kept))
    written(directory, store, "a", "b")
    store = opened(directory)
    assert store.remove_leftovers() == 1
    assert on_disk(directory) == {each.path for each in kept}
    assert opened(directory).remove_leftovers() == 0


def test_a_job_whose_directory_went_cannot_commit_any_more(directory: Path) -> None:
    """What it has written and not committed looks like that of a job that was killed."""
    one = opened(directory)
    files = written(directory, one, "a")
    other = opened(directory)
    assert other.remove_leftovers() == 1
    with pytest.raises(ArchiveBusyError):
        one.commit(Commit(add=files, query="q", batch_id=0))
    other.commit(Commit(add=written(directory, other, "a"), query="q", batch_id=0))
    assert on_disk(directory) == set(opened(directory).state.files)


def test_a_directory_that_was_committed_meanwhile_does_not_go(directory: Path) -> None:
    one, other = opened(directory), opened(directory)
    files = written(directory, one, "a")
    one.commit(Commit(add=files))
    with pytest.raises(ArchiveBusyError):
        other.remove_leftovers()
    assert on_disk(directory) == {each.path for each in files}


def test_what_a_killed_job_had_removed_and_not_deleted_goes(directory: Path) -> None:
    """A reader of the directory as a table would find its rows twice."""
    store = opened(directory)
    old, beside = written(directory, store, "a", "b")
    store.commit(Commit(add=(old, beside)))
    (new,) = written(directory, store, "a")
    compaction = encode_commit(Commit(add=(new,), remove=frozenset({old.path})))
    store.storage.create(f"log/{commit_name(store.state.next_commit)}", compaction)
    assert opened(directory).remove_leftovers() == 0
    assert on_disk(directory) == {beside.path, new.path}


@pytest.mark.parametrize("deleted", [1, 7, COMMITS_PER_STATE])
def test_a_job_killed_while_it_deletes_old_commits_leaves_an_archive_that_is_read(
    directory: Path, monkeypatch: pytest.MonkeyPatch, deleted: int
) -> None:
    store = opened(directory)
    files = written(directory, store, "a")
    store.commit(Commit(add=files, query="q", batch_id=0))
    for _ in range(COMMITS_PER_STATE - 2):
        store.commit(Commit())
    left, delete = deleted, PlainStorage.delete

    def delete_some(self: PlainStorage, path: str) -> None:
        nonlocal left
        if not left:
            raise KeyboardInterrupt
        left -= 1
        delete(self, path)

    monkeypatch.setattr(PlainStorage, "delete", delete_some)
    if deleted < COMMITS_PER_STATE:
        with pytest.raises(KeyboardInterrupt):
            store.commit(Commit())
    else:
        store.commit(Commit())
    monkeypatch.undo()
    monkeypatch.setattr(archive_store, "Storage", PlainStorage)

    again = opened(directory)
    assert set(again.state.files) == {each.path for each in files}
    assert again.state.holds("q", 0)
    again.commit(Commit())
    assert opened(directory).state.next_commit == again.state.next_commit
