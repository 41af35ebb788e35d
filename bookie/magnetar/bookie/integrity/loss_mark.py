"""The mark of a bookie that lost data and has not restored all of it.

A small file in every ledger directory, `integrity-check`, JSON (docs/formats/integrity.md). It is
written before any other step after a loss, and removed when the check has found every ledger
complete. As long as one of the files exists, the check continues after every start. Calls block.
"""

import posixpath
from collections.abc import Sequence

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from magnetar.bookie.integrity.sealed import open_sealed, seal
from magnetar.ledger.ports import Disk

MARK_NAME = "integrity-check"


class LossMark(BaseModel):
    """Facts about the loss."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    format: int = Field(default=1, ge=1, le=1)
    since_ms: int
    """Wall clock time of the loss, in milliseconds."""
    lost: list[str]
    """The directories that were empty."""
    is_noted: bool = True
    """Whether all ledgers that may be affected are in limbo. If not, the next start puts them there
    first."""


def write_marks(disk: Disk, directories: Sequence[str], mark: LossMark) -> None:
    """Write the mark to all directories; durable on return.

    Raises:
        OSError: the disk failed.
    """
    data = seal(mark.model_dump_json().encode())
    for directory in directories:
        disk.replace_file(posixpath.join(directory, MARK_NAME), data)


def is_check_needed(disk: Disk, directories: Sequence[str]) -> bool:
    """Return whether any of the directories has the mark, readable or not."""
    return any(MARK_NAME in disk.list(directory) for directory in directories)


def is_pass_needed(disk: Disk, directories: Sequence[str]) -> bool:
    """Return whether a mark says that the loss is not noted yet, or cannot be read.

    Raises:
        OSError: the disk failed.
    """
    for directory in directories:
        try:
            text = open_sealed(disk.read_file(posixpath.join(directory, MARK_NAME)))
        except FileNotFoundError:
            continue
        try:
            if text is None or not LossMark.model_validate_json(text).is_noted:
                return True
        except ValidationError:
            return True
    return False


def remove_marks(disk: Disk, directories: Sequence[str]) -> None:
    """Remove the marks; durable on return.

    Raises:
        OSError: the disk failed; some marks may be left, and the check is done again.
    """
    for directory in directories:
        try:
            disk.remove(posixpath.join(directory, MARK_NAME))
        except FileNotFoundError:
            continue
        disk.sync_directory(directory)
