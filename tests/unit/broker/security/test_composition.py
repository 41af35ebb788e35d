"""Files of the broker's security: each part is reloaded on its own."""

import base64
from pathlib import Path
from typing import Any

import jwt
import pytest
from structlog.testing import capture_logs

from magnetar.broker.base.errors import AuthenticationError
from magnetar.broker.security import Credentials
from tests.certificates import Authority
from tests.unit.broker.harness import Harness
from tests.unit.broker.security.test_authenticator import APR1, BCRYPT

USERS = "/users"
SECRET = "/secret.key"
PUBLIC = "/public.pem"


def harness(**settings: Any) -> Harness:
    made = Harness(basic_auth_file=USERS, **settings)
    made.files[USERS] = f"basil:{BCRYPT}\nanna:{APR1}\n".encode()
    return made


async def login(harness: Harness, method: str, data: bytes) -> str:
    given = Credentials(method, data)
    return (await harness.security.authenticator.authenticate(given, address="test:1")).role


def events(logs: Any) -> list[tuple[str, str]]:
    return [(each["event"], each["part"]) for each in logs if "part" in each]


async def test_a_removed_user_is_refused_though_a_certificate_is_broken(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    certificate, key = authority.issue("broker")
    made = harness(tls_certificate_file=str(certificate), tls_key_file=str(key))
    read_certificates(made, certificate, key)
    made.security.load()
    assert await login(made, "basic", b"anna:secret") == "anna"
    certificate.write_text("spoiled")
    read_certificates(made, certificate, key)
    made.files[USERS] = f"basil:{BCRYPT}\n".encode()
    with capture_logs() as logs:
        made.security.reload()
    assert events(logs) == [
        ("security_files_refused", "tls"),
        ("security_files_reloaded", "basic_auth_file"),
    ]
    with pytest.raises(AuthenticationError):
        await login(made, "basic", b"anna:secret")
    authority.issue("broker")
    read_certificates(made, certificate, key)
    with capture_logs() as logs:
        made.security.reload()
        made.security.reload()
    assert events(logs) == [("security_files_reloaded", "tls")]


def read_certificates(harness: Harness, *paths: Path) -> None:
    """Let the harness find on its own disk what is on the real one, which TLS reads."""
    harness.files.update({str(path): path.read_bytes() for path in paths})


async def test_a_revoked_secret_key_is_gone_though_the_public_key_is_broken() -> None:
    former, current = b"f" * 32, b"c" * 32
    made = harness(token_secret_key=SECRET, token_public_key=PUBLIC)
    made.files[SECRET] = former
    made.files[PUBLIC] = public_key()
    made.security.load()

    def token(secret: bytes) -> bytes:
        return jwt.encode({"sub": "alice"}, secret, algorithm="HS256").encode()

    assert await login(made, "token", token(former)) == "alice"
    made.files[SECRET] = current
    made.files[PUBLIC] = b"spoiled"
    with capture_logs() as logs:
        made.security.reload()
    assert events(logs) == [
        ("security_files_reloaded", "token_secret_key"),
        ("security_files_refused", "token_public_key"),
    ]
    assert await login(made, "token", token(current)) == "alice"
    with pytest.raises(AuthenticationError):
        await login(made, "token", token(former))


def public_key() -> bytes:
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

    key = ec.generate_private_key(ec.SECP256R1()).public_key()
    return key.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)


async def test_files_that_did_not_change_are_not_read_again_while_others_are_broken() -> None:
    made = harness(token_public_key=PUBLIC)
    made.files[PUBLIC] = public_key()
    made.security.load()
    assert await login(made, "basic", b"anna:secret") == "anna"
    made.files[PUBLIC] = b""
    for _ in range(2):
        with capture_logs() as logs:
            made.security.reload()
        assert events(logs) == [("security_files_refused", "token_public_key")]


async def test_a_key_in_the_settings_is_no_file_to_follow() -> None:
    secret = b"s" * 32
    made = harness(token_secret_key=f"data:;base64,{base64.b64encode(secret).decode()}")
    made.security.load()
    with capture_logs() as logs:
        made.security.reload()
    assert events(logs) == []
    token = jwt.encode({"sub": "alice"}, secret, algorithm="HS256").encode()
    assert await login(made, "token", token) == "alice"
