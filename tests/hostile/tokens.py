"""Tokens that nobody issued, in every way that they are forged: all are refused, at both doors."""

import asyncio
import base64
import hashlib
import hmac
import json
import time
from collections.abc import Iterator
from pathlib import Path

from magnetar.sdk.wire import BaseCommand
from magnetar.sdk.wire import pulsar_pb2 as pb
from tests.hostile.findings import Findings
from tests.integration.broker.raw_connection import RawConnection
from tests.integration.broker.security.secured import SECRET, Secured, bearer, token_for

_PATH = "/admin/v2/tenants"
_KEPT_OUT = (400, 401, 403, 431)


async def drill(directory: Path) -> Findings:
    return await asyncio.to_thread(_drill, directory)


def _drill(directory: Path) -> Findings:
    findings = Findings()
    server = Secured(directory / "data")
    with server:
        status, _ = server.ask("GET", _PATH, headers=bearer(token_for("root")))
        findings.note("a true token is let in", holds=status == 200, seen=status)
        for name, token in _forged():
            status, seen = server.ask("GET", _PATH, headers=bearer(token))
            findings.note(f"HTTP, {name}", holds=status in _KEPT_OUT, seen=(status, seen))
            seen_kind = _connect(server.port, token)
            findings.note(f"binary, {name}", holds=seen_kind != BaseCommand.CONNECTED)
        status, seen = server.ask("GET", _PATH)
        findings.note("no token at all", holds=status == 401, seen=(status, seen))
        status, seen = server.ask("GET", _PATH, headers=bearer(token_for("stranger")))
        findings.note("a stranger's token", holds=status in (401, 403), seen=(status, seen))
    return findings


def _connect(port: int, token: str) -> int:
    """The kind of the answer to a CONNECT; -1: the connection ended."""
    with RawConnection(port) as connection:
        request = pb.CommandConnect(
            client_version="evil",
            protocol_version=20,
            auth_method_name="token",
            auth_data=token.encode(),
        )
        connection.send_command(BaseCommand(type=BaseCommand.CONNECT, connect=request))
        try:
            return int(connection.receive().type)
        except (EOFError, ConnectionError):
            return -1


def _part(value: object) -> str:
    return base64.urlsafe_b64encode(json.dumps(value).encode()).rstrip(b"=").decode()


def _made(head: object, claims: object, *, key: bytes = SECRET) -> str:
    """A token with an HMAC over whatever it says."""
    text = f"{_part(head)}.{_part(claims)}"
    signed = hmac.new(key, text.encode(), hashlib.sha256).digest()
    return f"{text}.{base64.urlsafe_b64encode(signed).rstrip(b'=').decode()}"


def _forged() -> Iterator[tuple[str, str]]:
    root = {"sub": "root"}
    true = token_for("root")
    head, claims, signature = true.split(".")
    for alg in ("none", "None", "NONE", "", "HS384", "RS256", ["HS256"], None, 5):
        yield f"alg {alg!r}", _made({"alg": alg, "typ": "JWT"}, root)
        yield f"alg {alg!r} without a signature", f"{_part({'alg': alg})}.{_part(root)}."
    yield "no alg", _made({"typ": "JWT"}, root)
    yield "another secret", _made({"alg": "HS256"}, root, key=b"x" * 32)
    yield "an empty secret", _made({"alg": "HS256"}, root, key=b"")
    yield "another's claims", f"{head}.{_part({'sub': 'root', 'x': 1})}.{signature}"
    yield "a cut signature", f"{head}.{claims}.{signature[:-4]}"
    yield "a fourth part", f"{true}.{signature}"
    yield "expired", token_for("root", exp=int(time.time()) - 3600)
    yield "not yet", token_for("root", nbf=int(time.time()) + 3600)
    yield "critical header", _made({"alg": "HS256", "crit": ["x"], "x": 1}, root)
    yield "unencoded payload", _made({"alg": "HS256", "b64": False, "crit": ["b64"]}, root)
    yield "no subject", _made({"alg": "HS256"}, {"name": "root"})
    yield "claims that are a list", _made({"alg": "HS256"}, ["root"])
    yield "60 KiB", "a." * 30_000
    yield "nothing but dots", ".."
