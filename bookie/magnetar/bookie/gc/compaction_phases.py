"""The phases of a compaction, as its files show them, and how each is finished or undone. Pure.

One compaction copies the live packets of its source logs to a new log N. Its steps, each durable
before the next:

1. copy to `N.log.compacting`, and sync it;
2. write the record `N.log.compacted`: which logs N replaces, and which run went where;
3. rename `N.log.compacting` to `N.log`, since readers follow the index to that name;
4. move the index to the copies, by compare and set;
5. remove the source logs;
6. remove the record.

The record decides. A crash before it undoes the compaction: the copy is garbage. A crash after it
finishes the compaction: every step may be repeated, and step 4 changes only records that still
point to a source. A source is removed only when its copies and the index are durable (rule 10.3).

The names do not end in `.log`, so that an incomplete copy is never taken for an entry log. Layout
of the record: docs/formats/compaction.md.
"""

from collections.abc import Iterable, Mapping
from enum import Enum, auto
from typing import NamedTuple

# Stored on disk: never rename.
COPY_SUFFIX = ".compacting"
RECORD_SUFFIX = ".compacted"
NEW_RECORD_SUFFIX = ".compacted.new"
"""A record that is being written (`Disk.replace_file`); it does not count before its rename."""

_LOG_SUFFIX = ".log"
_ID_DIGITS = 8


class Step(Enum):
    """A remaining step of a compaction."""

    REMOVE_COPY = auto()
    NAME_LOG = auto()
    MOVE_RUNS = auto()
    REMOVE_SOURCES = auto()
    REMOVE_RECORD = auto()


class Files(NamedTuple):
    """Presence of each file of a compaction."""

    copy: bool
    record: bool
    log: bool


FINISH = (Step.NAME_LOG, Step.MOVE_RUNS, Step.REMOVE_SOURCES, Step.REMOVE_RECORD)
"""The steps after the record, in this order."""

STEPS: Mapping[Files, tuple[Step, ...]] = {
    Files(copy=True, record=False, log=False): (Step.REMOVE_COPY,),
    Files(copy=True, record=True, log=False): FINISH,
    Files(copy=False, record=True, log=True): FINISH[1:],
    # The name of the copy survived the rename: it is the same file.
    Files(copy=True, record=True, log=True): (Step.REMOVE_COPY, *FINISH[1:]),
    Files(copy=True, record=False, log=True): (Step.REMOVE_COPY,),
    # Undone after a failure: the copy is gone already, so the index was never moved.
    Files(copy=False, record=True, log=False): (Step.REMOVE_RECORD,),
    Files(copy=False, record=False, log=True): (),
}
"""The remaining steps, by the files that exist after a crash."""


def copy_name(log_id: int) -> str:
    return f"{log_id:08x}{_LOG_SUFFIX}{COPY_SUFFIX}"


def record_name(log_id: int) -> str:
    return f"{log_id:08x}{_LOG_SUFFIX}{RECORD_SUFFIX}"


def unfinished(names: Iterable[str]) -> dict[int, Files]:
    """Return the compactions that left files, by the id of their new log, ascending.

    `names` are all names of the directory.
    """
    present = set(names)
    found: set[int] = set()
    for name in present:
        for suffix in (COPY_SUFFIX, RECORD_SUFFIX):
            log_id = _log_id_in(name.removesuffix(suffix)) if name.endswith(suffix) else None
            if log_id is not None:
                found.add(log_id)
    return {
        log_id: Files(
            copy=copy_name(log_id) in present,
            record=record_name(log_id) in present,
            log=f"{log_id:08x}{_LOG_SUFFIX}" in present,
        )
        for log_id in sorted(found)
    }


def _log_id_in(name: str) -> int | None:
    digits = name.removesuffix(_LOG_SUFFIX)
    if digits == name or len(digits) != _ID_DIGITS:
        return None
    try:
        log_id = int(digits, 16)
    except ValueError:
        return None
    return log_id if f"{log_id:08x}" == digits else None
