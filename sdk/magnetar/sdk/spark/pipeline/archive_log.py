"""The log of an archive: its files, and how far each topic is archived. Pure.

An archive is a directory:

    log/00000007.json                     commit 7
    data/commit=00000007-5f3a/topic=…/day=2013-01-01/part-….parquet
    checkpoint/                           of the streaming query

A commit is one file, written at once and never changed. Files that a commit adds are in the
archive; files that no commit names are not. It holds JSON: `add` and `remove` (files), `batch`
(query and id of the micro-batch, if it is one) and `watermarks`. Now and then a commit has `state`
instead: the combined content of all previous commits, which are then deleted. A reader that does
not know the `version` refuses.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import TypeVar

from magnetar.sdk.spark.errors import ArchiveError

_T = TypeVar("_T")

VERSION = 1
UNKNOWN_DAY = "1970-01-01"
"""Day of messages whose time of publishing is out of Spark's range."""
COMMITS_PER_STATE = 50
"""Most commits that are read at the start."""


@dataclass(frozen=True, slots=True, order=True)
class Watermark:
    """The last archived message of a topic or partition; all before it are archived, too."""

    ledger_id: int
    entry_id: int
    batch_index: int

    def __str__(self) -> str:
        return f"{self.ledger_id}:{self.entry_id}:{self.batch_index}"


@dataclass(frozen=True, slots=True)
class DataFile:
    """One Parquet file."""

    path: str
    """Path relative to the archive's directory."""
    topic: str
    day: str
    rows: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class Commit:
    """The content of one file of the log."""

    add: tuple[DataFile, ...] = ()
    remove: frozenset[str] = frozenset()
    query: str = ""
    batch_id: int = -1
    watermarks: Mapping[str, Watermark] = field(default_factory=dict)
    """New watermarks of the topics in this commit."""


@dataclass(frozen=True, slots=True)
class ArchiveState:
    """The combined content of all commits."""

    next_commit: int = 0
    files: Mapping[str, DataFile] = field(default_factory=dict)
    """Files by path."""
    watermarks: Mapping[str, Watermark] = field(default_factory=dict)
    query: str = ""
    """The query that wrote last."""
    batch_id: int = -1
    """Last batch of that query; -1 if there is none."""
    commits_since_state: int = 0

    def after(self, commit: Commit) -> "ArchiveState":
        """Return the state after a further commit.

        Raises:
            ArchiveError: the commit adds an existing file, or removes a missing one.
        """
        files = dict(self.files)
        for path in commit.remove:
            if files.pop(path, None) is None:
                raise ArchiveError(f"commit {self.next_commit} removes {path}, which is not there")
        for each in commit.add:
            if each.path in files:
                raise ArchiveError(f"commit {self.next_commit} adds {each.path} a second time")
            files[each.path] = each
        is_batch = bool(commit.query)
        return ArchiveState(
            next_commit=self.next_commit + 1,
            files=files,
            watermarks={**self.watermarks, **commit.watermarks},
            query=commit.query if is_batch else self.query,
            batch_id=commit.batch_id if is_batch else self.batch_id,
            commits_since_state=self.commits_since_state + 1,
        )

    def holds(self, query: str, batch_id: int) -> bool:
        """Return whether a micro-batch is archived already."""
        return query == self.query and batch_id <= self.batch_id

    @property
    def rows(self) -> int:
        return sum(each.rows for each in self.files.values())

    @property
    def size_bytes(self) -> int:
        return sum(each.size_bytes for each in self.files.values())


def commit_name(number: int) -> str:
    return f"{number:08d}.json"


def number_of(name: str) -> int | None:
    """Return the number of a commit's file; None if it is another file."""
    stem, dot, suffix = name.partition(".")
    return int(stem) if dot and suffix == "json" and stem.isdigit() else None


def encode_commit(commit: Commit) -> str:
    body: dict[str, object] = {
        "version": VERSION,
        "add": [asdict(each) for each in commit.add],
        "remove": sorted(commit.remove),
        "watermarks": {topic: str(mark) for topic, mark in commit.watermarks.items()},
    }
    if commit.query:
        body["batch"] = {"query": commit.query, "id": commit.batch_id}
    return json.dumps(body, indent=1)


def encode_state(state: ArchiveState) -> str:
    """Encode a commit that replaces all before it; `state.next_commit` is the one after it."""
    return json.dumps(
        {
            "version": VERSION,
            "state": {
                "files": [asdict(each) for each in state.files.values()],
                "watermarks": {topic: str(mark) for topic, mark in state.watermarks.items()},
                "query": state.query,
                "batch_id": state.batch_id,
            },
        },
        indent=1,
    )


def fold(commits: Iterable[tuple[int, str]]) -> ArchiveState:
    """Return the state after commits, given as (number, text) in ascending order.

    Raises:
        ArchiveError: a commit is missing, cannot be read, or is of a newer release.
    """
    state: ArchiveState | None = None
    for number, text in commits:
        try:
            body = json.loads(text)
            if body["version"] != VERSION:
                raise ArchiveError(
                    f"commit {number} has version {body['version']}; this release reads {VERSION}"
                )
            if "state" in body:
                state = _state(body["state"], number)
                continue
            if state is None:
                state = ArchiveState()
            if number != state.next_commit:
                raise ArchiveError(f"commit {state.next_commit} of the archive's log is missing")
            state = state.after(_commit(body))
        except (ValueError, KeyError, TypeError) as error:
            raise ArchiveError(
                f"commit {number} of the archive's log is damaged: {error}"
            ) from error
    return state or ArchiveState()


def has_state(text: str) -> bool:
    """Return whether a commit replaces all before it."""
    try:
        return "state" in json.loads(text)
    except (ValueError, TypeError):
        return False  # damaged: `fold` reports it


def removed_by(text: str) -> frozenset[str]:
    """Return the paths that a commit removes from the archive."""
    return frozenset(json.loads(text).get("remove", ()))


def _commit(body: Mapping[str, object]) -> Commit:
    removed = _checked(body["remove"], list, "remove")
    commit = Commit(
        add=_files(body["add"]),
        remove=frozenset(_checked(each, str, "a removed path") for each in removed),
        watermarks=_watermarks(body["watermarks"]),
    )
    if "batch" not in body:
        return commit
    # A batch that is passed over here would be archived a second time.
    batch = _checked(body["batch"], dict, "batch")
    return replace(
        commit,
        query=_checked(batch["query"], str, "query"),
        batch_id=_checked(batch["id"], int, "id"),
    )


def _state(found: object, number: int) -> ArchiveState:
    body = _checked(found, dict, "state")
    return ArchiveState(
        next_commit=number + 1,
        files={each.path: each for each in _files(body["files"])},
        watermarks=_watermarks(body["watermarks"]),
        query=_checked(body["query"], str, "query"),
        batch_id=_checked(body["batch_id"], int, "batch_id"),
    )


def _files(listed: object) -> tuple[DataFile, ...]:
    return tuple(map(_file, _checked(listed, list, "the list of files")))


def _file(found: object) -> DataFile:
    fields = _checked(found, dict, "a file")
    if fields["day"] is None:  # as older releases wrote it for `UNKNOWN_DAY`
        fields = {**fields, "day": UNKNOWN_DAY}
    file = DataFile(**fields)
    for text in (file.path, file.topic, file.day):
        _checked(text, str, "a part of a file")
    for number in (file.rows, file.size_bytes):
        _checked(number, int, "a count of a file")
    return file


def _watermarks(found: object) -> dict[str, Watermark]:
    marks = _checked(found, dict, "watermarks")
    return {topic: _watermark(_checked(mark, str, topic)) for topic, mark in marks.items()}


def _watermark(mark: str) -> Watermark:
    return Watermark(*map(int, mark.split(":")))


def _checked(value: object, kind: type[_T], what: str) -> _T:
    """Return the value if it has this type. `fold` translates the error."""
    if not isinstance(value, kind):
        raise ValueError(f"{what} is {value!r:.100}, not of type {kind.__name__}")
    return value
