"""Standard streams that stop nobody.

What is written to standard error is for people. When its disk is full, when whoever read it is gone
(a `tee` that was killed, a log collector that restarts), or when nobody reads a pipe that is full,
a line that cannot be written is lost and counted. The stream that Python makes would raise or wait
instead, in the middle of whatever has something to say: topics would not load, a server would not
drain, a bookie that must end could not, and one full pipe would stop the event loop.

A line is written in pieces that the kernel takes whole without waiting (`PIPE_BUF`), each after a
look whether there is room. A reader gets `_PATIENCE_S` to make room, once; then lines are dropped
until there is room again, and a line tells how many were.
"""

import io
import os
import select
import socket
import stat
import sys

from typing_extensions import Buffer

_PATIENCE_S = 0.05
"""How long the event loop waits for a reader that is behind. After that it does not wait for it."""
_NULL = "/dev/null"

_lost = {"lines": 0}


def lost_lines() -> int:
    """Lines for standard error that could not be written, in the life of this process."""
    return _lost["lines"]


def fill_standard_descriptors() -> None:
    """Open descriptors 0 to 2 on nothing, where the process was started without them.

    Files and sockets would get their numbers otherwise, and what is printed would end in them.
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
    """From now on `sys.stderr` raises no error when a line cannot be written, and waits for
    nobody."""
    former = sys.stderr
    if not isinstance(former, io.TextIOWrapper):
        return  # Not the process's own: somebody captures it.
    raw = _Lossy(former.fileno())
    sys.stderr = io.TextIOWrapper(
        io.BufferedWriter(raw),
        encoding=former.encoding,
        errors=former.errors,
        line_buffering=True,
    )


class _Lossy(io.RawIOBase):
    """A file that takes everything, and keeps what it can without waiting."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._poll = select.poll()
        self._poll.register(descriptor, select.POLLOUT)
        mode = os.fstat(descriptor).st_mode
        self._is_file = stat.S_ISREG(mode)
        # A socket may have room for a part only, and a write would wait for the rest.
        self._socket = socket.socket(fileno=os.dup(descriptor)) if stat.S_ISSOCK(mode) else None
        self._lost = 0
        """Lines since the last one that was written."""

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
        # It begins a new line: the last one may have been cut.
        if self.isatty():
            return b"\n%d lines were lost: standard error was full\n" % self._lost
        return b'\n{"event": "log_lines_lost", "level": "warning", "lines": %d}\n' % self._lost

    def _put(self, content: bytes, *, patience_s: float) -> bool:
        """Write it; False: it, or the rest of it, is lost."""
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
