"""Credentials by the names of Pulsar's plugins, and tokens of an issuer."""

import json
import pickle
from pathlib import Path

import pytest

from magnetar.arrow.stored.authentication_options import (
    IssuerTokens,
    OAuth2Options,
    auth_of,
    of_plugins,
)
from magnetar.arrow.stored.errors import OptionError
from magnetar.sdk.authentication import REFUSED_AGE_MIN_S, OAuth2ClientCredentials
from magnetar.sdk.errors import CredentialsError, IssuerUnavailableError

AUTH = "org.apache.pulsar.client.impl.auth."


def translated(plugin: str, params: str) -> dict[str, str]:
    return of_plugins(
        {"pulsar.client.authpluginclassname": plugin, "pulsar.client.authparams": params}
    )


@pytest.mark.parametrize(
    ("plugin", "params", "options"),
    [
        ("AuthenticationToken", "token:abc", {"authentication": "token:abc"}),
        ("AuthenticationToken", "abc", {"authentication": "token:abc"}),
        ("AuthenticationToken", '{"token": "abc"}', {"authentication": "token:abc"}),
        ("AuthenticationToken", "file:///a/b", {"authentication": "token:file:/a/b"}),
        (
            "AuthenticationBasic",
            '{"userId": "u", "password": "p:q"}',
            {"authentication": "basic:u:p:q"},
        ),
        (
            "AuthenticationTls",
            "tlsCertFile:/c.pem,tlsKeyFile:/k.pem",
            {
                "authentication": "tls",
                "tlsCertificateFile": "/c.pem",
                "tlsKeyFile": "/k.pem",
            },
        ),
        (
            "oauth2.AuthenticationOAuth2",
            json.dumps(
                {
                    "type": "client_credentials",
                    "issuerUrl": "https://i",
                    "privateKey": "file:///key.json",
                    "audience": "urn:a",
                }
            ),
            {
                "authentication": "oauth2",
                "oauth2IssuerUrl": "https://i",
                "oauth2CredentialsFile": "/key.json",
                "oauth2Audience": "urn:a",
            },
        ),
    ],
)
def test_a_plugin_and_its_parameters_are_options_here(
    plugin: str, params: str, options: dict[str, str]
) -> None:
    assert translated(AUTH + plugin, params) == options
    assert of_plugins({}) == {}


@pytest.mark.parametrize(
    ("plugin", "params", "text"),
    [
        ("AuthenticationSasl", "hidden", "pulsar.client.authpluginclassname: the plugin is one of"),
        ("AuthenticationToken", '{"hidden": 1}', "no parameters of AuthenticationToken"),
        ("AuthenticationToken", "", "no parameters"),
        ("AuthenticationBasic", "hidden", "no parameters of AuthenticationBasic"),
        ("AuthenticationTls", "hidden", "no parameters of AuthenticationTls"),
        ("AuthenticationOAuth2", '{"issuerUrl": "hidden"}', "no parameters"),
        (
            "AuthenticationOAuth2",
            '{"issuerUrl": "https://i", "privateKey": "data:application/json;base64,hidden"}',
            "oauth2CredentialsFile: .*name a file",
        ),
    ],
)
def test_what_has_no_equivalent_is_refused_and_not_shown(
    plugin: str, params: str, text: str
) -> None:
    with pytest.raises(OptionError, match=text) as refusal:
        translated(AUTH + plugin, params)
    assert "hidden" not in str(refusal.value)


def test_credentials_for_the_admin_interface_alone_are_refused() -> None:
    same = {
        "pulsar.client.authpluginclassname": AUTH + "AuthenticationToken",
        "pulsar.client.authparams": "token:a",
        "pulsar.admin.authpluginclassname": AUTH + "AuthenticationToken",
        "pulsar.admin.authparams": "token:a",
    }
    assert of_plugins(same) == {"authentication": "token:a"}
    with pytest.raises(OptionError, match=r"pulsar\.admin\.authparams: it differs"):
        of_plugins({**same, "pulsar.admin.authparams": "token:hidden"})


def test_the_forms_of_authentication(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("abc\n")
    assert auth_of(f"token:file:{token}") == ("token", b"abc")
    assert auth_of("oauth2") == ("token", b"")
    with pytest.raises(OptionError, match="or oauth2"):
        auth_of("oauth2:hidden")


class Time:
    """Passes when it is told to."""

    def __init__(self) -> None:
        self.now_s = 1_000.0

    def monotonic_s(self) -> float:
        return self.now_s

    def wall_ms(self) -> int:
        return 0


@pytest.fixture
def options(tmp_path: Path) -> OAuth2Options:
    path = tmp_path / "credentials.json"
    path.write_text('{"type": "client_credentials", "client_id": "me", "client_secret": "hidden"}')
    return OAuth2Options("https://issuer.example.com", str(path), audience="urn:a")


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[OAuth2ClientCredentials]:
    """How often the issuer was asked; each token lives 100 s."""
    every: list[OAuth2ClientCredentials] = []

    def fetch(credentials: OAuth2ClientCredentials) -> tuple[str, float]:
        every.append(credentials)
        return f"token-{len(every)}", 100.0

    monkeypatch.setattr(OAuth2ClientCredentials, "fetch", fetch)
    return every


async def test_a_token_is_kept_until_its_life_is_nearly_over(
    options: OAuth2Options, asked: list[OAuth2ClientCredentials]
) -> None:
    time = Time()
    tokens = IssuerTokens(options, clock=time)
    assert (tokens(), await tokens.data()) == (b"token-1", b"token-1")
    time.now_s += 89.9
    assert tokens() == b"token-1"
    time.now_s += 0.1
    assert tokens() == b"token-2"
    assert tokens.method_name == "token"


def test_a_token_that_was_refused_is_replaced_unless_it_is_young(
    options: OAuth2Options, asked: list[OAuth2ClientCredentials]
) -> None:
    time = Time()
    tokens = IssuerTokens(options, clock=time)
    assert not tokens.renew()
    assert tokens() == b"token-1"
    time.now_s += REFUSED_AGE_MIN_S - 0.1
    tokens.on_refused()
    assert tokens() == b"token-1"
    time.now_s += 0.1
    assert tokens.renew()
    assert tokens() == b"token-2"


def test_another_process_asks_for_a_token_of_its_own(
    options: OAuth2Options, asked: list[OAuth2ClientCredentials]
) -> None:
    tokens = IssuerTokens(options)
    assert tokens() == b"token-1"
    moved = pickle.dumps(tokens)
    assert b"token-1" not in moved
    assert b"hidden" not in moved
    there = pickle.loads(moved)
    assert there() == b"token-2"
    assert pickle.loads(moved) is there, "tasks of one process ask the issuer once"
    assert "hidden" not in repr(tokens)


def test_credentials_that_cannot_be_read_are_told_of_without_them(
    options: OAuth2Options, asked: list[OAuth2ClientCredentials]
) -> None:
    path = Path(options.credentials_file)
    time = Time()
    tokens = IssuerTokens(options, clock=time)
    tokens()
    time.now_s += 1_000
    path.unlink()
    with pytest.raises(IssuerUnavailableError, match="oauth2CredentialsFile"):
        tokens()  # it is about to be replaced
    with pytest.raises(CredentialsError, match="No such file") as missing:
        IssuerTokens(options)()
    assert not missing.value.retryable
    for text in ("hidden", '["hidden"]', '{"client_id": "hidden"}', '{"client_id": 5}'):
        path.write_text(text)
        with pytest.raises(CredentialsError, match="is not JSON with") as refusal:
            tokens()
        assert "hidden" not in str(refusal.value)
        assert refusal.value.__suppress_context__
