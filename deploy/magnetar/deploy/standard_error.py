"""A standard error that stops nobody.

What is written there is for people. When its disk is full, or whoever read it is gone (a `tee` that
was killed, a log collector that restarts), a line that cannot be written is lost. The stream that
Python makes would raise instead, in the middle of whatever has something to say: topics would not
load, a server would not drain, and a bookie that must end could not.
"""

import io
import sys

from typing_extensions import Buffer


def tolerate_lost_lines() -> None:
    """From now on `sys.stderr` raises no error when a line cannot be written."""
    former = sys.stderr
    if not isinstance(former, io.TextIOWrapper):
        return  # Not the process's own: closed at the start, or somebody captures it.
    raw = _Lossy(former.fileno(), "w", closefd=False)
    sys.stderr = io.TextIOWrapper(
        io.BufferedWriter(raw),
        encoding=former.encoding,
        errors=former.errors,
        line_buffering=True,
    )


class _Lossy(io.FileIO):
    """A file that takes everything, and keeps what it can."""

    def write(self, data: Buffer, /) -> int:
        try:
            written = super().write(data)
        except OSError:
            written = None
        # None: a pipe in non-blocking mode that is full.
        return memoryview(data).nbytes if written is None else written
