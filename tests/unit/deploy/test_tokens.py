"""`magnetar admin tokens`: what it makes is what brokers take."""

import stat
from pathlib import Path

import pytest

from magnetar.deploy import token_tools
from magnetar.deploy.errors import SettingsError


def token(**options: str) -> str:
    given = {"secret_key": "", "private_key": "", "expiry": "", "algorithm": "", "audience": ""}
    return token_tools.new_token("alice", **{**given, **options})


@pytest.mark.parametrize("algorithm", ["HS256", "HS384", "HS512"])
def test_a_secret_key_signs_and_checks(tmp_path: Path, algorithm: str) -> None:
    path = tmp_path / "secret.key"
    token_tools.write_secret(path, token_tools.new_secret_key(algorithm, as_base64=False))
    made = token(secret_key=f"file://{path}", algorithm=algorithm, expiry="1d")
    assert token_tools.validate(made, secret_key=str(path), public_key="") == "alice"
    header, claims = token_tools.parts_of(made)
    assert algorithm in header
    assert '"sub": "alice"' in claims
    assert '"exp"' in claims


@pytest.mark.parametrize("algorithm", ["RS256", "ES256", "ES384", "ES512"])
def test_a_private_key_signs_and_the_public_one_checks(tmp_path: Path, algorithm: str) -> None:
    private, public = token_tools.new_key_pair(algorithm)
    (tmp_path / "private").write_bytes(private)
    (tmp_path / "public").write_bytes(public)
    made = token(private_key=str(tmp_path / "private"))
    found = token_tools.validate(made, secret_key="", public_key=str(tmp_path / "public"))
    assert found == "alice"


def test_a_secret_is_for_its_owner_alone_and_never_overwritten(tmp_path: Path) -> None:
    path = tmp_path / "secret.key"
    token_tools.write_secret(path, b"first")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    with pytest.raises(SettingsError, match="File exists"):
        token_tools.write_secret(path, b"second")
    assert path.read_bytes() == b"first"


def test_a_token_of_another_key_is_refused_with_the_reason() -> None:
    one, other = (
        f"data:;base64,{token_tools.new_secret_key('HS256', as_base64=True).decode()}"
        for _ in range(2)
    )
    with pytest.raises(SettingsError, match="signature"):
        token_tools.validate(token(secret_key=one), secret_key=other, public_key="")


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({}, "give either"),
        ({"secret_key": "data:;base64,c2hvcnQ="}, "needs at least 32"),
        ({"secret_key": f"data:;base64,{'a' * 44}", "expiry": "soon"}, "--expiry-time"),
        ({"secret_key": f"data:;base64,{'a' * 44}", "algorithm": "HS512"}, "not a key for HS512"),
        ({"private_key": "data:;base64,c2hvcnQ="}, "not a usable private key"),
    ],
)
def test_what_cannot_be_a_token_is_one_line(options: dict[str, str], reason: str) -> None:
    with pytest.raises(SettingsError, match=reason):
        token(**options)


def test_unknown_algorithms_are_refused() -> None:
    with pytest.raises(SettingsError, match="HS1"):
        token_tools.new_secret_key("HS1", as_base64=False)
    with pytest.raises(SettingsError, match="PS256"):
        token_tools.new_key_pair("PS256")
