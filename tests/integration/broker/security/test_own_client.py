"""The SDK and the `magnetar` command with TLS, tokens and certificates; refreshing credentials."""

import asyncio
import os
import subprocess
import time
from collections.abc import Callable

import pytest

from magnetar.sdk import Client, ClientSettings, ConsumerSettings, InitialPosition
from magnetar.sdk.errors import SdkError
from magnetar.sdk.wire.errors import AuthenticationError, AuthorizationError
from tests.integration.broker.security.secured import Secured, token_for
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
        with pytest.raises(AuthenticationError, match="no JSON Web Token"):
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
        lives_s = 2 if not given else 3600
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
    assert refused.returncode == 8
    assert "answered 401" in refused.stderr
