"""System calls of a process, recorded by strace: which bytes and names are safely on the disk.

Files are identified by their paths. Written bytes are *wet* until a sync that began later has
succeeded; a name is *wet* from its creation or renaming until its directory is synced.
"""

import os
import re
import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

_CALLS = (
    "write,pwrite64,writev,pwritev,pwritev2,fdatasync,fsync,rename,renameat,renameat2,openat,"
    "sendto,sendmsg"
)
_LINE = re.compile(r"(\d+) +(?:<\.\.\. (\w+) resumed>(.*)|(\w+)\((.*))$")
_DESCRIPTOR = re.compile(r"^\d+<([^>]*?)(?:\(deleted\))?>")
_SOCKET = re.compile(r"^\d+<TCP")
_QUOTED = re.compile(r'"([^"]*)"')
_RESULT = re.compile(r"= (-?\d+)[^=]*$")
_WRITES = ("write", "pwrite64", "writev", "pwritev", "pwritev2")
_SYNCS = ("fdatasync", "fsync")
_CONNECTION = "TCP"
ADVICE = "The test needs strace: sh deploy/bootstrap/strace.sh"


class Call(NamedTuple):
    """One system call. Its start and end are lines of the trace; others may lie between."""

    thread: int
    name: str
    path: str
    """Path of the file or directory, or the new name; `TCP` for a connection."""
    source: str
    """The old name of a rename."""
    is_new: bool
    """Whether the call may have created the file."""
    begun: int
    ended: int


def strace(trace: Path, command: Iterable[str]) -> list[str]:
    """Return a command line that runs another command and records its system calls. The process id
    is that of the command itself, so that the caller can kill it."""
    program = shutil.which("strace")
    if program is None:
        pytest.fail(ADVICE)
    options = ["-D", "-f", "-yy", "-s", "0", "-e", f"trace={_CALLS}", "-e", "signal=SIGKILL"]
    return [program, *options, "-o", str(trace), *command]


def calls_in(trace: Path) -> list[Call]:
    """Return the calls that succeeded, in the order of their ends."""
    return list(_calls(trace.read_text(errors="replace").splitlines()))


def _calls(lines: list[str]) -> Iterator[Call]:
    open_calls: dict[int, tuple[int, str]] = {}
    for number, line in enumerate(lines):
        found = _LINE.match(line)
        if found is None:
            continue
        thread = int(found[1])
        if found[2] is not None:
            begun, arguments = open_calls.pop(thread, (number, ""))
            name, arguments = found[2], arguments + found[3]
        else:
            begun, name, arguments = number, found[4], found[5]
        if arguments.endswith("<unfinished ...>"):
            open_calls[thread] = begun, arguments.removesuffix("<unfinished ...>")
            continue
        result = _RESULT.search(arguments)
        if result is None or int(result[1]) < 0:
            continue
        yield _call(thread, name, arguments, begun, number)


def _call(thread: int, name: str, arguments: str, begun: int, ended: int) -> Call:
    quoted = _QUOTED.findall(arguments)
    if name.startswith("rename"):
        return Call(thread, name, quoted[1], quoted[0], True, begun, ended)
    if name == "openat":
        return Call(thread, name, quoted[0], "", "O_CREAT" in arguments, begun, ended)
    if _SOCKET.match(arguments):
        return Call(thread, name, _CONNECTION, "", False, begun, ended)
    descriptor = _DESCRIPTOR.match(arguments)
    return Call(thread, name, descriptor[1] if descriptor else "", "", False, begun, ended)


class DiskState:
    """What is safely on the disk at a line of the trace; `follow` takes the calls in the order of
    their ends."""

    def __init__(self) -> None:
        self._written: dict[str, int] = {}
        """Files with wet bytes -> the end of the last write."""
        self._named: dict[str, int] = {}
        """Wet names -> the end of the call that made them."""
        self._known: set[str] = set()

    def follow(self, call: Call) -> None:
        if call.name in _WRITES:
            self._written[call.path] = call.ended
        elif call.name in _SYNCS:
            if self._written.get(call.path, call.begun) < call.begun:
                del self._written[call.path]
            for path, ended in list(self._named.items()):
                if os.path.dirname(path) == call.path and ended < call.begun:
                    del self._named[path]
        elif call.name.startswith("rename"):
            self._named[call.path] = call.ended
            self._known.add(call.path)
            self._named.pop(call.source, None)
            if call.source in self._written:
                self._written[call.path] = self._written.pop(call.source)
        elif call.is_new and call.path not in self._known:
            self._named[call.path] = call.ended
            self._known.add(call.path)

    def wet(self, paths: Iterable[str]) -> list[str]:
        """Return what a power cut could take of these files."""
        found = []
        for path in paths:
            if path in self._written:
                found.append(f"bytes of {path}")
            if path in self._named:
                found.append(f"the name {path}")
        return found

    @property
    def files(self) -> list[str]:
        return sorted({*self._written, *self._named})


def is_answer(call: Call) -> bool:
    """Whether bytes left over a connection."""
    return call.path == _CONNECTION and call.name in (*_WRITES, "sendto", "sendmsg")


def is_write(call: Call) -> bool:
    return call.name in _WRITES


def is_rename(call: Call) -> bool:
    return call.name.startswith("rename")
