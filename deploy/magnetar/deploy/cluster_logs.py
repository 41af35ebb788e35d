"""Rotation of the logs that the servers of a cluster on this host write straight to their files.

A server holds its log open, and so may programs that it has started, as Java is by ZooKeeper. So a
log is not renamed, but copied and cut: NAME.log becomes NAME.log.1, that NAME.log.2, and so on. The
servers append, and go on at the new end. A line that is written between the end of the copy and the
cut is lost, a matter of microseconds. On a full disk nothing is cut before its copy is whole.

    NAME.log       what the server says now
    NAME.log.1     what it said before, the newest first
"""

import contextlib
import os
import shutil
from pathlib import Path

_COPIED_BYTES = 1 << 20


def rotate(path: Path, *, bytes_max: int, files_max: int) -> bool:
    """Rotate the log if it is larger than `bytes_max`; whether it was. Blocks on the disk.

    Args:
        files_max: former logs that are kept; 0: none.

    Raises:
        OSError: the copy cannot be made, as on a full disk; the log is as it was.
    """
    try:
        if path.stat().st_size <= bytes_max:
            return False
    except FileNotFoundError:
        return False
    if files_max:
        draft = path.with_name(path.name + ".new")
        try:
            with path.open("rb") as log, draft.open("wb") as copy:
                shutil.copyfileobj(log, copy, _COPIED_BYTES)
                copy.flush()
                for number in range(files_max, 1, -1):
                    _move(_former(path, number - 1), _former(path, number))
                draft.replace(_former(path, 1))
                shutil.copyfileobj(log, copy, _COPIED_BYTES)  # written meanwhile
                copy.flush()
                os.truncate(path, 0)
        except OSError:
            with contextlib.suppress(OSError):
                draft.unlink()
            raise
    else:
        os.truncate(path, 0)
    return True


def _former(path: Path, number: int) -> Path:
    return path.with_name(f"{path.name}.{number}")


def _move(source: Path, destination: Path) -> None:
    try:
        source.replace(destination)
    except FileNotFoundError:
        pass
