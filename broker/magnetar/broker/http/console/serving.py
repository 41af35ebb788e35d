"""Serve the files of the console from the package.

Each file has an ETag of its content, and browsers revalidate it each time. So a new release is
visible at once, and an unchanged one costs nothing. The files are read at the first request and
kept in memory, less than a quarter of a megabyte. They hold no secrets and are open to all: the
page itself asks for credentials, and each of its requests is checked like any other.
"""

import asyncio
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files

from magnetar.broker.http.authentication import Scope, Send

PREFIX = "/console/"
PAGE = "index.html"

CONTENT_SECURITY_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    # The page builds everything from text nodes: no string ever becomes markup.
    "require-trusted-types-for 'script'; trusted-types 'none'"
)
_HEADERS = (
    (b"cache-control", b"no-cache"),
    (b"content-security-policy", CONTENT_SECURITY_POLICY.encode()),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"referrer-policy", b"no-referrer"),
    (b"x-content-type-options", b"nosniff"),
    # Programs get another answer at the same address.
    (b"vary", b"accept"),
)
_TYPES = {
    ".css": b"text/css; charset=utf-8",
    ".html": b"text/html; charset=utf-8",
    ".js": b"text/javascript; charset=utf-8",
    ".svg": b"image/svg+xml",
}


@dataclass(frozen=True, slots=True)
class File:
    """A file with its media type and ETag."""

    content: bytes
    media_type: bytes
    etag: bytes


def load() -> Mapping[str, File]:
    """Return all files by name."""
    found = {}
    for each in files("magnetar.broker.http.console").joinpath("files").iterdir():
        media_type = _TYPES.get(each.name[each.name.rfind(".") :])
        if media_type is not None:
            content = each.read_bytes()
            digest = hashlib.sha256(content).hexdigest()[:24]
            found[each.name] = File(content, media_type, f'"{digest}"'.encode())
    return found


class ConsoleFiles:
    """The files of the console over HTTP."""

    def __init__(self) -> None:
        self._files: Mapping[str, File] | None = None

    def is_for(self, scope: Scope) -> bool:
        """Whether a request is a browser's for the page, or for one of its files."""
        if scope["type"] != "http" or scope["method"] not in ("GET", "HEAD"):
            return False
        path: str = scope["path"]
        return path.startswith(PREFIX) or (path == "/" and _wants_page(scope))

    async def answer(self, scope: Scope, send: Send) -> None:
        """Answer 200 with the file, 304 if the browser has it, 404 if there is no such file."""
        if self._files is None:
            self._files = await asyncio.to_thread(load)
        path: str = scope["path"]
        file = self._files.get(PAGE if path == "/" else path.removeprefix(PREFIX))
        if file is None:
            await _send(send, 404, [(b"content-type", b"text/plain")], b"There is no such file.")
        elif file.etag in _header(scope, b"if-none-match"):
            await _send(send, 304, [(b"etag", file.etag), *_HEADERS], b"")
        else:
            length = str(len(file.content)).encode()
            own = [
                (b"content-type", file.media_type),
                (b"content-length", length),
                (b"etag", file.etag),
            ]
            body = b"" if scope["method"] == "HEAD" else file.content
            await _send(send, 200, [*own, *_HEADERS], body)


def _wants_page(scope: Scope) -> bool:
    """Whether the client accepts HTML: browsers do when a user opens an address; tools and load
    balancers do not."""
    return b"text/html" in _header(scope, b"accept")


def _header(scope: Scope, name: bytes) -> bytes:
    return b",".join(value for key, value in scope["headers"] if key == name)


async def _send(send: Send, status: int, headers: list[tuple[bytes, bytes]], body: bytes) -> None:
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
