"""Certificates: bookies that ask for them, files that change, and what is not let in."""

import asyncio
import re
import socket
import ssl
from functools import partial
from pathlib import Path

import pytest

from magnetar.broker.security.composition import _fetcher
from magnetar.ledger.system import SystemNetwork
from magnetar.ledger.tls import ClientTls, ServerTls, TlsConfigError, TlsFiles, TlsNetwork
from magnetar.sdk import Client, ClientSettings, ConsumerSettings, InitialPosition
from tests.certificates import Authority
from tests.integration.broker.security.secured import Secured, token_for
from tests.processes import HOST


def _same(protocol: asyncio.Protocol) -> asyncio.Protocol:
    return protocol


class _Echo(asyncio.Protocol):
    def __init__(self) -> None:
        self.received: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport
        transport.write(b"hello")  # type: ignore[attr-defined]

    def data_received(self, data: bytes) -> None:
        self.received.set_result(data)

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.received.done():
            self.received.set_result(b"")


def files(authority: Authority, name: str) -> TlsFiles:
    certificate, key = authority.issue(name)
    return TlsFiles(str(certificate), str(key), str(authority.path))


async def name_of_server(port: int, trusted: Authority) -> str:
    context = ssl.create_default_context(cafile=str(trusted.path))
    _, writer = await asyncio.open_connection(HOST, port, ssl=context)
    certificate = writer.get_extra_info("peercert")
    writer.transport.abort()
    return str(certificate["subject"][0][0][1])


def answers_without_certificate(port: int, trusted: Authority) -> bool:
    """Whether a server goes on with a client that shows none."""
    context = ssl.create_default_context(cafile=str(trusted.path))
    try:
        with (
            socket.create_connection((HOST, port), 20) as plain,
            context.wrap_socket(plain, server_hostname=HOST) as secured,
        ):
            secured.sendall(b"x")
            return bool(secured.recv(1))
    except OSError:
        return False


async def test_new_handshakes_get_the_certificate_that_is_in_the_files_now(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    certificate, key = authority.issue("before", file="server")
    server = ServerTls(TlsFiles(str(certificate), str(key)))
    listener = await TlsNetwork(server=server).listen(HOST, 0, _Echo)
    try:
        assert await name_of_server(listener.port, authority) == "before"
        authority.issue("after", file="server")
        server.reload()
        assert await name_of_server(listener.port, authority) == "after"
        certificate.write_text("spoiled")
        with pytest.raises(TlsConfigError, match="cannot use the certificate"):
            server.reload()
        assert await name_of_server(listener.port, authority) == "after"
    finally:
        await listener.close()


async def test_a_client_needs_a_certificate_of_the_clusters_own_authority(tmp_path: Path) -> None:
    ours, theirs = Authority(tmp_path, "ours"), Authority(tmp_path, "theirs")
    server = ServerTls(files(ours, "bookie"), requires_certificate=True)
    listener = await TlsNetwork(server=server).listen(HOST, 0, _Echo)
    good = ClientTls(files(ours, "broker"))
    stranger_certificate, stranger_key = theirs.issue("stranger")
    stranger = ClientTls(TlsFiles(str(stranger_certificate), str(stranger_key), str(ours.path)))
    nothing = ClientTls(TlsFiles(authorities=str(ours.path)))
    distrusting = ClientTls(files(theirs, "other"))
    try:
        for network, is_let_in in (
            (TlsNetwork(client=good), True),
            (TlsNetwork(client=stranger), False),
            (TlsNetwork(client=nothing), False),
            (TlsNetwork(client=distrusting), False),
            (SystemNetwork(), False),
        ):
            protocol = _Echo()
            answer = b""
            try:
                transport = await network.connect(
                    HOST, listener.port, partial(_same, protocol), timeout_s=20
                )
                answer = await asyncio.wait_for(protocol.received, 20)
                transport.abort()
            except OSError:
                pass
            assert (answer == b"hello") == is_let_in
    finally:
        await listener.close()


async def test_bookies_and_brokers_show_each_other_certificates(tmp_path: Path) -> None:
    cluster = Authority(tmp_path, "cluster")
    certificate, key = cluster.issue("server")
    links = [
        f"tls_certificate_file = '{certificate}'",
        f"tls_key_file = '{key}'",
        f"tls_ca_file = '{cluster.path}'",
    ]
    server = Secured(tmp_path / "data", settings=["[bookie]", *links, "[ledger]", *links])
    with server:
        server.make_tenant("acme", "acme-admin")
        settings = ClientSettings(
            auth_method_name="token", auth_data=token_for("acme-admin").encode()
        )
        async with Client(server.url, settings) as client:
            producer = await client.producer("persistent://acme/ns/t")
            await producer.send(b"hello")
            consumer = await client.consumer(
                "persistent://acme/ns/t",
                "s",
                ConsumerSettings(initial_position=InitialPosition.EARLIEST),
            )
            assert (await asyncio.wait_for(consumer.receive(), 20)).data == b"hello"
        found = re.search(r'"port": (\d+), "replayed', server.log_text())
        assert found is not None
        assert not answers_without_certificate(int(found[1]), cluster)
        server.assert_log_clean()


async def test_a_running_server_takes_a_certificate_that_was_replaced(server: Secured) -> None:
    assert await name_of_server(server.tls_port, server.authority) == "broker"
    server.authority.issue("renewed", file="broker")
    for _ in range(600):
        if await name_of_server(server.https_port, server.authority) == "renewed":
            break
        await asyncio.sleep(0.05)
    assert await name_of_server(server.tls_port, server.authority) == "renewed"


async def test_issuers_are_vouched_for_by_who_is_in_the_file_now(tmp_path: Path) -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\n{}")
        await writer.drain()
        writer.close()

    trusted = tmp_path / "trusted.pem"
    fetch = _fetcher(SystemNetwork(), authorities=str(trusted), timeout_s=10)
    for name in ("former", "next"):
        authority = Authority(tmp_path, name)
        trusted.write_bytes(authority.path.read_bytes())
        context = ServerTls(files(authority, f"issuer of {name}")).context
        async with await asyncio.start_server(answer, HOST, 0, ssl=context) as server:
            port = server.sockets[0].getsockname()[1]
            assert await fetch(f"https://{HOST}:{port}/keys") == b"{}"
