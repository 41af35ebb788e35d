"""Standard streams that never block or fail the process.

Standard error is for people. A line that cannot be written is lost and counted: the disk is full,
the reader is gone (a killed `tee`, a log collector that restarts), or a pipe is full and nobody
reads it. Python's own stream would raise or wait instead, in the middle of any code that logs.
Topics would not load, a server would not drain, a bookie that must end could not, and one full pipe
would stop the event loop.

A line is written in pieces that the kernel takes whole without waiting (`PIPE_BUF`), each after a
check that there is room. A reader gets `_PATIENCE_S` to make room, once. After that, lines are
dropped until there is room again, and a line tells how many were.
"""

import io
import os
import select
import socket
import stat
import sys

from typing_extensions import Buffer

_PATIENCE_S = 0.05
"""Time in seconds that the event loop waits for a slow reader, once."""
_NULL = "/dev/null"

_lost = {"lines": 0}


def lost_lines() -> int:
    """Return the number of lines for standard error that could not be written in this process's
    life."""
    return _lost["lines"]


def fill_standard_descriptors() -> None:
    """Open descriptors 0 to 2 on /dev/null, if the process was started without them.

    Otherwise files and sockets would get these numbers, and printed text would end in them.
    """
    for descriptor in (0, 1, 2):
        try:
            os.fstat(descriptor)
        except OSError:
            flags = os.O_RDONLY if descriptor == 0 else os.O_WRONLY
            opened = os.open(_NULL, flags)
            if opened != descriptor:
                os.dup2(opened, descriptor)
                os.close(opened)
            os.set_inheritable(descriptor, True)
    if sys.stdin is None:
        sys.stdin = open(0, closefd=False)  # noqa: SIM115  # as long as the process
    if sys.stdout is None:
        sys.stdout = open(1, "w", closefd=False)  # noqa: SIM115
    if sys.stderr is None:
        sys.stderr = open(2, "w", closefd=False)  # noqa: SIM115


def tolerate_lost_lines() -> None:
    """Replace `sys.stderr` by a stream that raises no error for a lost line, and does not wait."""
    former = sys.stderr
    if not isinstance(former, io.TextIOWrapper):
        return  # not the process's own stream: a caller captures it
    raw = _Lossy(former.fileno())
    sys.stderr = io.TextIOWrapper(
        io.BufferedWriter(raw),
        encoding=former.encoding,
        errors=former.errors,
        line_buffering=True,
    )


class _Lossy(io.RawIOBase):
    """A file that accepts everything, and writes what it can without waiting."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._poll = select.poll()
        self._poll.register(descriptor, select.POLLOUT)
        mode = os.fstat(descriptor).st_mode
        self._is_file = stat.S_ISREG(mode)
        # A socket may have room for only a part, and a write would wait for the rest.
        self._socket = socket.socket(fileno=os.dup(descriptor)) if stat.S_ISSOCK(mode) else None
        self._lost = 0
        """Lines lost since the last one that was written."""

    def fileno(self) -> int:
        return self._descriptor

    def isatty(self) -> bool:
        return os.isatty(self._descriptor)

    def writable(self) -> bool:
        return True

    def write(self, data: Buffer, /) -> int:
        content = bytes(data)
        if self._lost and self._put(self._told(), patience_s=0.0):
            self._lost = 0
        if self._lost or not self._put(content, patience_s=_PATIENCE_S):
            lines = max(1, content.count(b"\n"))
            self._lost += lines
            _lost["lines"] += lines
        return len(content)

    def _told(self) -> bytes:
        # Starts on a new line: the last line may have been cut.
        if self.isatty():
            return b"\n%d lines were lost: standard error was full\n" % self._lost
        return b'\n{"event": "log_lines_lost", "level": "warning", "lines": %d}\n' % self._lost

    def _put(self, content: bytes, *, patience_s: float) -> bool:
        """Write the content. Return False if it, or the rest of it, is lost."""
        try:
            if self._is_file:
                return os.write(self._descriptor, content) == len(content)
            at = 0
            while at < len(content):
                if not self._poll.poll(patience_s * 1000):
                    return False
                piece = content[at : at + select.PIPE_BUF]
                if self._socket is not None:
                    at += self._socket.send(piece, socket.MSG_DONTWAIT)
                else:
                    at += os.write(self._descriptor, piece)
        except OSError:
            return False
        return True
