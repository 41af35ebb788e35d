"""The SDK and the `magnetar` command with TLS, tokens and certificates; refreshing credentials."""

import asyncio
import json
import os
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs

import pytest

from magnetar.arrow import AccessDeniedError, UnreachableError, read
from magnetar.sdk import Client, ClientSettings, ConsumerSettings, InitialPosition
from magnetar.sdk.authentication import (
    BasicAuthentication,
    OAuth2ClientCredentials,
    TokenAuthentication,
)
from magnetar.sdk.errors import CredentialsError, SdkError
from magnetar.sdk.wire.errors import AuthenticationError, AuthorizationError
from tests.integration.broker.security.secured import PASSWORD, Secured, token_for
from tests.processes import HOST, magnetar_command, magnetar_environment

TOPIC = "persistent://acme/ns/own"
EARLIEST = ConsumerSettings(initial_position=InitialPosition.EARLIEST)


async def exchange(client: Client, topic: str) -> None:
    async with client:
        producer = await client.producer(topic)
        await producer.send(b"hello")
        consumer = await client.consumer(topic, "s", EARLIEST)
        assert (await asyncio.wait_for(consumer.receive(), 20)).data == b"hello"


async def test_the_sdk_over_tls_with_a_token(server: Secured) -> None:
    settings = ClientSettings(
        auth_method_name="token",
        auth_data=token_for("acme-admin").encode(),
        tls_trust_file=str(server.authority.path),
    )
    await exchange(Client(server.tls_url, settings), TOPIC + "-token")


async def test_the_sdk_with_a_certificate(server: Secured) -> None:
    certificate, key = server.authority.issue("acme-admin", file="sdk")
    settings = ClientSettings(
        auth_method_name="tls",
        tls_trust_file=str(server.authority.path),
        tls_certificate_file=str(certificate),
        tls_key_file=str(key),
    )
    await exchange(Client(server.tls_url, settings), TOPIC + "-certificate")


async def test_a_server_that_nobody_vouches_for_is_not_talked_to(server: Secured) -> None:
    settings = ClientSettings(auth_method_name="token", auth_data=b"never sent")
    async with Client(server.tls_url, settings) as client:
        with pytest.raises(SdkError, match="CERTIFICATE_VERIFY_FAILED"):
            await client._lookup.connection_for(TOPIC)


async def test_wrong_credentials_and_missing_rights_have_classes_of_their_own(
    server: Secured,
) -> None:
    wrong = ClientSettings(auth_method_name="token", auth_data=b"wrong")
    async with Client(server.url, wrong) as client:
        with pytest.raises(AuthenticationError, match="not a JSON Web Token"):
            await client.producer(TOPIC)
    other = ClientSettings(auth_method_name="token", auth_data=token_for("nobody").encode())
    async with Client(server.url, other) as client:
        with pytest.raises(AuthorizationError, match="'nobody' may neither produce"):
            await client.producer(TOPIC)


async def test_an_expiring_token_is_asked_for_again_and_the_connection_goes_on(
    server: Secured,
) -> None:
    given: list[bytes] = []
    asked_again = asyncio.Event()

    def supply() -> bytes:
        if given:
            asked_again.set()
        lives_s = 4 if not given else 3600
        token = token_for("acme-admin", exp=int(time.time()) + lives_s).encode()
        given.append(token)
        return token

    settings = ClientSettings(auth_method_name="token", auth_supplier=supply)
    async with Client(server.url, settings) as client:
        producer = await client.producer(TOPIC + "-expiring")
        await producer.send(b"before")
        await asyncio.wait_for(asked_again.wait(), 20)
        await producer.send(b"after")
        assert len(given) == 2


async def test_a_token_comes_from_a_file_a_function_or_as_text(
    server: Secured, tmp_path: Path
) -> None:
    path = tmp_path / "token"
    path.write_text(token_for("acme-admin") + "\n")
    for number, authentication in enumerate(
        (
            TokenAuthentication(token_for("acme-admin")),
            TokenAuthentication(lambda: token_for("acme-admin")),
            TokenAuthentication(path=path),
        )
    ):
        settings = ClientSettings(authentication=authentication)
        await exchange(Client(server.url, settings), f"{TOPIC}-from-{number}")
    missing = ClientSettings(authentication=TokenAuthentication(path=tmp_path / "missing"))
    async with Client(server.url, missing) as client:
        with pytest.raises(CredentialsError, match="missing"):
            await client.producer(TOPIC)


async def test_a_file_with_a_fresh_token_is_read_when_the_broker_asks(
    server: Secured, tmp_path: Path
) -> None:
    path = tmp_path / "token"
    path.write_text(token_for("acme-admin", exp=int(time.time()) + 3))
    settings = ClientSettings(authentication=TokenAuthentication(path=path))
    async with Client(server.url, settings) as client:
        connection = await client._lookup.service_connection()
        # Before anything that has to be stored: that may take longer than the first token lives.
        path.write_text(token_for("acme-admin"))
        producer = await client.producer(TOPIC + "-file")
        async with asyncio.timeout(30):
            while connection._answering is None:
                await producer.send(b"until it is asked for")
            await connection._answering
        await producer.send(b"after")
        assert connection.is_open


async def test_user_and_password(server: Secured) -> None:
    good = ClientSettings(authentication=BasicAuthentication("basil", PASSWORD))
    await exchange(Client(server.url, good), TOPIC + "-basic-own")
    wrong = ClientSettings(authentication=BasicAuthentication("basil", "wrong"))
    async with Client(server.url, wrong) as client:
        with pytest.raises(AuthenticationError, match="wrong user or password"):
            await client.producer(TOPIC)


@contextmanager
def issuer(answers: list[tuple[int, str]]) -> Iterator[tuple[str, list[str]]]:
    """An issuer of tokens that gives these answers in turn; its URL, and the forms it got."""
    forms: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            host = self.headers["Host"]
            self.answer(200, json.dumps({"token_endpoint": f"http://{host}/token"}))

        def do_POST(self) -> None:
            forms.append(self.rfile.read(int(self.headers["Content-Length"])).decode())
            self.answer(*answers[min(len(forms), len(answers)) - 1])

        def answer(self, status: int, text: str) -> None:
            self.send_response(status)
            self.end_headers()
            self.wfile.write(text.encode())

        def log_message(self, *arguments: object) -> None:
            """Nothing: the tests say what they expect."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as running:
        threading.Thread(target=running.serve_forever, daemon=True).start()
        try:
            yield f"http://127.0.0.1:{running.server_port}/", forms
        finally:
            running.shutdown()


async def test_tokens_of_an_issuer_by_client_credentials(server: Secured) -> None:
    token = json.dumps({"access_token": token_for("acme-admin"), "expires_in": 3600})
    # Trouble of the issuer's own is no answer: it is asked again.
    with issuer([(503, "come back later"), (200, token)]) as (url, forms):
        authentication = OAuth2ClientCredentials(
            url, client_id="me", client_secret="a & b", audience="urn:magnetar"
        )
        settings = ClientSettings(authentication=authentication)
        await exchange(Client(server.url, settings), TOPIC + "-oauth")
        await exchange(Client(server.url, settings), TOPIC + "-oauth2")  # the token is kept
    assert [parse_qs(form) for form in forms] == [
        {
            "grant_type": ["client_credentials"],
            "client_id": ["me"],
            "client_secret": ["a & b"],
            "audience": ["urn:magnetar"],
        }
    ] * 2


async def test_a_reader_of_topics_gets_tokens_of_an_issuer(server: Secured, tmp_path: Path) -> None:
    """What plans a read, over HTTP, and what reads, through a broker, as for Spark. A process asks
    for one token."""
    topic = TOPIC + "-issued"
    settings = ClientSettings(auth_method_name="token", auth_data=token_for("acme-admin").encode())
    await exchange(Client(server.url, settings), topic)
    credentials = tmp_path / "credentials.json"
    credentials.write_text('{"client_id": "me", "client_secret": "hidden"}')
    given = [
        json.dumps({"access_token": each, "expires_in": 3600})
        for each in ("refused", token_for("acme-admin"))
    ]

    def values() -> list[bytes]:
        found = read(
            topic,
            service_url=server.url,
            admin_url=f"http://{HOST}:{server.http_port}",
            authentication="oauth2",
            options={"oauth2IssuerUrl": url, "oauth2CredentialsFile": str(credentials)},
        )
        return [bytes(each) for each in found.read_all().column("value").to_pylist()]

    with issuer([(200, given[0])]) as (url, _), pytest.raises(AccessDeniedError, match="401"):
        await asyncio.to_thread(values)
    away = (503, "come back later")
    with issuer([away]) as (url, _), pytest.raises(UnreachableError, match="503"):
        await asyncio.to_thread(values)
    with issuer([(200, given[1])]) as (url, forms):
        assert await asyncio.to_thread(values) == [b"hello"]
    assert [parse_qs(form)["client_secret"] for form in forms] == [["hidden"]]


async def test_a_token_that_was_refused_is_replaced_but_its_issuer_not_pestered(
    server: Secured, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = [
        json.dumps({"access_token": token, "expires_in": 3600})
        for token in ("refused", token_for("acme-admin"))
    ]
    with issuer([(200, each) for each in given]) as (url, forms):
        authentication = OAuth2ClientCredentials(url, client_id="me", client_secret="x")
        settings = ClientSettings(authentication=authentication)
        async with Client(server.url, settings) as client:
            for _ in range(3):
                with pytest.raises(AuthenticationError):
                    await client.producer(TOPIC + "-refused")
            assert len(forms) == 1, "it is too young to be replaced"
            monkeypatch.setattr("magnetar.sdk.authentication.REFUSED_AGE_MIN_S", 0.0)
            with pytest.raises(AuthenticationError):
                await client.producer(TOPIC + "-refused")
            await client.producer(TOPIC + "-refused")
    assert len(forms) == 2


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        ((401, '{"error": "invalid_client"}'), "invalid_client"),
        ((200, "no JSON"), "not answer with JSON"),
        ((200, "[]"), "a JSON object"),
        ((200, "{}"), "without an access_token"),
    ],
)
async def test_an_issuers_refusal_is_told(
    server: Secured, answer: tuple[int, str], told: str
) -> None:
    with issuer([answer]) as (url, _):
        authentication = OAuth2ClientCredentials(url, client_id="me", client_secret="x")
        async with Client(server.url, ClientSettings(authentication=authentication)) as client:
            with pytest.raises(CredentialsError, match=told):
                await client.producer(TOPIC)


def run(server: Secured, *arguments: str, **environment: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        magnetar_command(*arguments),
        env={**magnetar_environment(), **environment},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.fixture
def secured_environment(server: Secured) -> Callable[[str], dict[str, str]]:
    def environment(role: str) -> dict[str, str]:
        return {
            "MAGNETAR_TOKEN": token_for(role),
            "MAGNETAR_TLS_TRUST": str(server.authority.path),
            "MAGNETAR_URL": server.tls_url,
            "MAGNETAR_ADMIN_URL": f"https://{HOST}:{server.https_port}",
        }

    return environment


def test_the_command_line_proves_itself_by_its_environment(
    server: Secured, secured_environment: Callable[[str], dict[str, str]]
) -> None:
    assert "MAGNETAR_TOKEN" not in os.environ
    good = secured_environment("acme-admin")
    done = run(server, "produce", TOPIC + "-cli", "-m", "hello", **good)
    assert done.returncode == 0, done.stderr
    done = run(server, "admin", "lookup", TOPIC + "-cli", "--json", **good)
    assert done.returncode == 0, done.stderr
    assert "pulsar://" in done.stdout
    refused = run(server, "admin", "lookup", TOPIC, **{**good, "MAGNETAR_TOKEN": "wrong"})
    assert refused.returncode == 15
    assert "answered 401" in refused.stderr
