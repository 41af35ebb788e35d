"""Where `magnetar produce` takes its messages from: options, files, or the lines of stdin."""

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
"""Of one message: as much as a consumer puts together of chunks by default."""
LINE_BYTES_MAX = 64 << 20
"""Of a line of stdin, which would otherwise grow in memory."""
_STDIN_BYTES = 64 << 10
STDIN = "-"

LineParser = Callable[[bytes], GivenMessage]


def source_of(
    messages: Sequence[str], files: Sequence[str], *, is_json: bool, key_separator: str | None
) -> AsyncIterator[GivenMessage]:
    """The messages that the options ask for: payloads, files, or the lines of stdin.

    Raises:
        SettingsError: more than one of them.
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
    """Payloads that were given as options: the bytes of the command line, whatever they are."""
    for text in texts:
        yield GivenMessage(payload=os.fsencode(text))


async def of_files(paths: Sequence[str]) -> AsyncIterator[GivenMessage]:
    """One message per file; `-` is the whole of stdin.

    Raises:
        SettingsError: a file cannot be read, or is too large for a message.
    """
    for path in paths:
        yield GivenMessage(payload=await _stdin_bytes() if path == STDIN else _file_bytes(path))


async def of_lines(parse: LineParser) -> AsyncIterator[GivenMessage]:
    """The lines of stdin, each as soon as it is there.

    Raises:
        SettingsError: a line is no message, or has no end.
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
    """How a line is read: JSON, a key and a payload with a separator between, or a payload.

    Raises:
        SettingsError: an empty separator, or both at once.
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
    """What is there, as soon as something is; empty at the end.

    By a thread, since the loop has PINGs to answer meanwhile; by one that nobody waits for, since
    Ctrl-C does not end its read.
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
        with contextlib.suppress(RuntimeError):  # The loop was closed meanwhile.
            loop.call_soon_threadsafe(give, data, failed)

    threading.Thread(target=read, name="stdin", daemon=True).start()
    return await piece
