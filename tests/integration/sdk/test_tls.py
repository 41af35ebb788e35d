"""Certificates that are renewed while a client runs: each connection takes what is there."""

import ssl
from dataclasses import replace
from pathlib import Path

import pytest
from websockets.asyncio.server import ServerConnection, serve

from magnetar.broker.security.identity import role_of
from magnetar.sdk import Client, ClientSettings, tls
from magnetar.sdk.errors import BrokerUnavailableError, TlsFileError
from magnetar.sdk.web_socket import WebSocketClient
from tests.certificates import Authority
from tests.integration.sdk.conftest import FAST
from tests.integration.sdk.scripted_broker import ScriptedBroker
from tests.waiting import until


class Files:
    """An authority, a server's context that asks for certificates, and a client's settings."""

    def __init__(self, directory: Path) -> None:
        self._authority = Authority(directory)
        self.server = ssl.create_default_context(
            ssl.Purpose.CLIENT_AUTH, cafile=str(self._authority.path)
        )
        self.server.verify_mode = ssl.CERT_REQUIRED
        self.server.load_cert_chain(*self._authority.issue("server"))
        certificate, key = self.renew("first")
        self.settings: ClientSettings = replace(
            FAST,
            tls_trust_file=str(self._authority.path),
            tls_certificate_file=str(certificate),
            tls_key_file=str(key),
        )

    def renew(self, name: str) -> tuple[Path, Path]:
        return self._authority.issue(name, file="client")


@pytest.fixture
def files(tmp_path: Path) -> Files:
    return Files(tmp_path)


@pytest.fixture
async def secured(broker: ScriptedBroker, files: Files) -> ScriptedBroker:
    """A broker that speaks TLS alone."""
    broker.stop()
    broker.tls = files.server
    await broker.listen()
    return broker


async def test_a_new_connection_shows_the_certificate_that_is_there_now(
    secured: ScriptedBroker, files: Files
) -> None:
    async with Client(secured.tls_url, files.settings) as client:
        await client.partitions("t")
        assert [role_of(peer.certificate) for peer in secured.peers] == ["first"]
        files.renew("second")
        secured.drop_connections()
        await until(lambda: not client._pool.is_open, "the client has noticed")
        await client.partitions("t")
        assert [role_of(peer.certificate) for peer in secured.peers] == ["second"]


async def test_a_client_whose_connection_was_lost_can_be_closed(
    secured: ScriptedBroker, files: Files
) -> None:
    client = Client(secured.tls_url, files.settings)
    await client.partitions("t")
    secured.drop_connections()
    await until(lambda: not client._pool.is_open, "the client has noticed")
    await client.close()


def test_files_that_cannot_be_used_are_told_at_once(files: Files) -> None:
    Path(files.settings.tls_key_file).write_text("no key")
    with pytest.raises(TlsFileError):
        Client("pulsar+ssl://localhost", files.settings)
    with pytest.raises(TlsFileError):
        WebSocketClient("wss://localhost", files.settings)


class KeyComesLater:
    """A renewal whose key is there only when the client has met the certificate without it."""

    def __init__(self, files: Files, monkeypatch: pytest.MonkeyPatch) -> None:
        self._key = Path(files.settings.tls_key_file)
        self._made = tls.tls_context
        self._renew = files.renew
        self.failures = 0
        monkeypatch.setattr("magnetar.sdk.tls.tls_context", self._make)

    def begin(self) -> None:
        old = self._key.read_bytes()
        self._renew("second")
        self._new = self._key.read_bytes()
        self._key.write_bytes(old)

    def _make(self, settings: ClientSettings) -> ssl.SSLContext:
        try:
            return self._made(settings)
        except TlsFileError:
            self.failures += 1
            self._key.write_bytes(self._new)
            raise


async def test_a_certificate_that_is_there_before_its_key_fails_only_for_a_moment(
    secured: ScriptedBroker, files: Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    renewal = KeyComesLater(files, monkeypatch)
    async with Client(secured.tls_url, files.settings) as client:
        renewal.begin()
        with pytest.raises(BrokerUnavailableError, match="key"):  # retryable, as any connecting
            await client.partitions("t")
        await client.partitions("t")
        assert [role_of(peer.certificate) for peer in secured.peers] == ["second"]
    assert renewal.failures == 1


async def test_a_web_socket_session_waits_for_the_key_of_its_certificate(
    files: Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown: list[str] = []

    async def answer(connection: ServerConnection) -> None:
        shown.append(role_of(connection.transport.get_extra_info("peercert")))
        await connection.wait_closed()

    renewal = KeyComesLater(files, monkeypatch)
    async with serve(answer, "127.0.0.1", 0, ssl=files.server) as server:
        port = next(iter(server.sockets)).getsockname()[1]
        async with WebSocketClient(f"wss://127.0.0.1:{port}", files.settings) as web:
            renewal.begin()
            await web.producer("t")
    assert shown == ["second"]
    assert renewal.failures == 1


async def test_a_web_socket_session_shows_the_certificate_that_is_there_now(files: Files) -> None:
    shown: list[str] = []

    async def answer(connection: ServerConnection) -> None:
        shown.append(role_of(connection.transport.get_extra_info("peercert")))
        if len(shown) == 1:
            files.renew("second")
            return
        await connection.wait_closed()

    async with serve(answer, "127.0.0.1", 0, ssl=files.server) as server:
        port = next(iter(server.sockets)).getsockname()[1]
        async with WebSocketClient(f"wss://127.0.0.1:{port}", files.settings) as web:
            await web.producer("t")
            await until(lambda: len(shown) == 2, "it is there again")
    assert shown == ["first", "second"]
