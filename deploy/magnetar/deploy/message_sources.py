"""Sources of messages for `magnetar produce`: options, files, or the lines of stdin."""

import asyncio
import contextlib
import os
import sys
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path

from magnetar.deploy.errors import SettingsError
from magnetar.deploy.message_lines import GivenMessage, message_of_json

FILE_BYTES_MAX = 256 << 20
"""Largest message from a file, in bytes: as much as a consumer assembles from chunks by default."""
LINE_BYTES_MAX = 64 << 20
"""Longest line of stdin, in bytes; it is held in memory."""
_STDIN_BYTES = 64 << 10
STDIN = "-"

LineParser = Callable[[bytes], GivenMessage]


def source_of(
    messages: Sequence[str], files: Sequence[str], *, is_json: bool, key_separator: str | None
) -> AsyncIterator[GivenMessage]:
    """Return the messages that the options name: payloads, files, or the lines of stdin.

    Raises:
        SettingsError: the options name more than one source.
    """
    by_line = is_json or key_separator is not None
    if sum(map(bool, (messages, files, by_line))) > 1:
        raise SettingsError(
            "--message, --file, and --json or --key-separator exclude each other: give one"
        )
    if messages:
        return of_options(messages)
    if files:
        return of_files(files)
    return of_lines(line_parser(is_json=is_json, key_separator=key_separator))


async def of_options(texts: Sequence[str]) -> AsyncIterator[GivenMessage]:
    """Yield a message per option, with the unchanged bytes of the command line as payload."""
    for text in texts:
        yield GivenMessage(payload=os.fsencode(text))


async def of_files(paths: Sequence[str]) -> AsyncIterator[GivenMessage]:
    """Yield one message per file; `-` is the whole of stdin.

    Raises:
        SettingsError: a file cannot be read, or is too large for a message.
    """
    for path in paths:
        yield GivenMessage(payload=await _stdin_bytes() if path == STDIN else _file_bytes(path))


async def of_lines(parse: LineParser) -> AsyncIterator[GivenMessage]:
    """Yield a message per line of stdin, as soon as the line is complete.

    Raises:
        SettingsError: a line is not a message, or is too long.
    """
    rest: list[bytes] = []
    held = 0
    while piece := await _read_stdin():
        first, newline, more = piece.partition(b"\n")
        rest.append(first)
        held += len(first)
        if not newline:
            _check_line(held)
            continue
        *lines, last = more.split(b"\n")
        for line in (b"".join(rest), *lines):
            yield parse(line.removesuffix(b"\r"))
        rest, held = [last], len(last)
    if held:
        yield parse(b"".join(rest).removesuffix(b"\r"))


def line_parser(*, is_json: bool, key_separator: str | None) -> LineParser:
    """Return the parser of a line: JSON, a key and a payload with a separator between, or a
    payload.

    Raises:
        SettingsError: an empty separator, or both options at once.
    """
    if is_json:
        if key_separator is not None:
            raise SettingsError("--json has the keys in its lines: leave out --key-separator")
        return message_of_json
    if key_separator is None:
        return lambda line: GivenMessage(payload=line)
    separator = os.fsencode(key_separator)
    if not separator:
        raise SettingsError("--key-separator is empty: give a text, as ':' or $'\\t'")
    return lambda line: _keyed(line, separator)


def _keyed(line: bytes, separator: bytes) -> GivenMessage:
    key, found, payload = line.partition(separator)
    if not found:
        shown = line[:100].decode(errors="replace")
        raise SettingsError(
            f"bad line {shown!r}: no {separator.decode(errors='replace')!r} in it (--key-separator)"
        )
    try:
        return GivenMessage(payload=payload, key=key.decode())
    except UnicodeDecodeError:
        return GivenMessage(payload=payload, key=key)


def _check_line(size: int) -> None:
    if size > LINE_BYTES_MAX:
        raise SettingsError(
            f"a line of stdin has more than {LINE_BYTES_MAX} bytes: give binary data by --file, as "
            "--file - for stdin"
        )


def _file_bytes(path: str) -> bytes:
    try:
        size = Path(path).stat().st_size
        _check_file(path, size)
        with open(path, "rb") as file:
            data = file.read(FILE_BYTES_MAX + 1)
    except OSError as error:
        raise SettingsError(f"bad --file {path!r}: {error.strerror}") from error
    _check_file(path, len(data))
    return data


def _check_file(path: str, size: int) -> None:
    if size > FILE_BYTES_MAX:
        raise SettingsError(
            f"bad --file {path!r}: {size} bytes or more; a message has at most {FILE_BYTES_MAX}"
        )


async def _stdin_bytes() -> bytes:
    pieces: list[bytes] = []
    size = 0
    while piece := await _read_stdin():
        pieces.append(piece)
        size += len(piece)
        _check_file(STDIN, size)
    return b"".join(pieces)


async def _read_stdin() -> bytes:
    """Return the next bytes of stdin as soon as there are some; empty at the end.

    A thread reads, because the event loop must answer PINGs meanwhile. It is a daemon thread,
    because Ctrl-C does not interrupt its read.
    """
    loop = asyncio.get_running_loop()
    piece: asyncio.Future[bytes] = loop.create_future()

    def give(data: bytes, error: OSError | None) -> None:
        if piece.done():
            return  # cancelled
        if error is None:
            piece.set_result(data)
        else:
            piece.set_exception(error)

    def read() -> None:
        data, failed = b"", None
        try:
            data = os.read(sys.stdin.fileno(), _STDIN_BYTES)
        except OSError as error:
            failed = error
        with contextlib.suppress(RuntimeError):  # the loop was closed meanwhile
            loop.call_soon_threadsafe(give, data, failed)

    threading.Thread(target=read, name="stdin", daemon=True).start()
    return await piece
