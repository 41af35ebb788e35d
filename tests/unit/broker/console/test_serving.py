"""The files of the console over HTTP."""

import re

import pytest

from magnetar.broker.http.authentication import Message, Scope
from magnetar.broker.http.console.serving import ConsoleFiles, load

HTML = (b"accept", b"text/html,application/xhtml+xml")


def _scope(path: str, *headers: tuple[bytes, bytes], method: str = "GET") -> Scope:
    return {"type": "http", "method": method, "path": path, "headers": list(headers)}


async def _get(scope: Scope) -> tuple[int, dict[bytes, bytes], bytes]:
    said: list[Message] = []

    async def send(message: Message) -> None:
        said.append(message)

    await ConsoleFiles().answer(scope, send)
    return said[0]["status"], dict(said[0]["headers"]), said[1]["body"]


@pytest.mark.parametrize(
    ("scope", "is_ours"),
    [
        (_scope("/", HTML), True),
        (_scope("/", HTML, method="HEAD"), True),
        (_scope("/", (b"accept", b"*/*")), False),
        (_scope("/"), False),
        (_scope("/", HTML, method="POST"), False),
        (_scope("/console/app.js"), True),
        (_scope("/admin/v2/clusters", HTML), False),
        ({"type": "websocket", "path": "/", "headers": [HTML]}, False),
    ],
)
def test_the_page_is_for_browsers_and_everything_else_goes_on(scope: Scope, is_ours: bool) -> None:
    assert ConsoleFiles().is_for(scope) is is_ours


async def test_the_page_allows_nothing_from_elsewhere_and_no_markup_out_of_strings() -> None:
    status, headers, body = await _get(_scope("/", HTML))
    assert (status, headers[b"content-type"]) == (200, b"text/html; charset=utf-8")
    policy = headers[b"content-security-policy"].decode()
    assert "default-src 'none'" in policy
    assert "require-trusted-types-for 'script'" in policy
    assert "unsafe" not in policy
    assert headers[b"x-content-type-options"] == b"nosniff"
    assert b"console/app.js" in body


async def test_what_the_browser_has_already_is_not_sent_again() -> None:
    _, headers, body = await _get(_scope("/console/style.css"))
    assert (headers[b"cache-control"], len(body) > 0) == (b"no-cache", True)
    same = (b"if-none-match", headers[b"etag"])
    status, again, nothing = await _get(_scope("/console/style.css", same))
    assert (status, again[b"etag"], nothing) == (304, headers[b"etag"], b"")
    other = (b"if-none-match", b'"of another release"')
    assert (await _get(_scope("/console/style.css", other)))[0] == 200


async def test_head_has_the_length_and_no_body() -> None:
    status, headers, body = await _get(_scope("/console/app.js", method="HEAD"))
    assert (status, int(headers[b"content-length"]) > 0, body) == (200, True, b"")


@pytest.mark.parametrize("name", ["nothing.js", "", "../serving.py", "files/app.js", "/etc/passwd"])
async def test_nothing_but_the_files_is_served(name: str) -> None:
    assert (await _get(_scope(f"/console/{name}")))[0] == 404


def test_the_files_are_small_and_name_each_other_and_nothing_else() -> None:
    files = load()
    assert sum(len(each.content) for each in files.values()) < 256 << 10
    for name, file in files.items():
        text = file.content.decode()
        assert not re.search(r"https?://(?!www\.w3\.org/2000/svg)", text), name
        assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(", text)
        imports = re.findall(r'from "\./([\w.]+)"', text)
        assert [each for each in imports if each not in files] == [], name
