"""Rotation of the logs that the servers of a cluster on this host write straight to their files.

A server holds its log open, and so may programs that it started, as ZooKeeper starts Java. A log is
therefore not renamed, but copied and truncated: NAME.log becomes NAME.log.1, NAME.log.1 becomes
NAME.log.2, and so on. The servers append, and continue at the new end. A line written between the
end of the copy and the truncation is lost, a matter of microseconds. On a full disk nothing is
truncated before its copy is complete.

    NAME.log       current log
    NAME.log.1     former logs, the newest first
"""

import contextlib
import os
import shutil
from pathlib import Path

_COPIED_BYTES = 1 << 20


def rotate(path: Path, *, bytes_max: int, files_max: int) -> bool:
    """Rotate the log if it is larger than `bytes_max`. Return whether it was. Blocks on the disk.

    Args:
        files_max: number of former logs to keep; 0: none.

    Raises:
        OSError: the copy cannot be made, as on a full disk; the log is unchanged.
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
                shutil.copyfileobj(log, copy, _COPIED_BYTES)  # written meanwhile
                copy.flush()
                # From here on the copy counts. A failure before the truncation would have the next
                # rotation copy the same lines again, so nothing more is written until then.
                for number in range(files_max, 1, -1):
                    _move(_former(path, number - 1), _former(path, number))
                draft.replace(_former(path, 1))
                tail = log.read()  # written during the renames
                os.truncate(path, 0)
                copy.write(tail)
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
