"""TLS around the network port: contexts that reload their files, and a network that uses them.

Certificates change while servers run. So a server's context is made once, handed to the event loop,
and replaced by the newest one at each handshake. Existing connections are kept.
"""

import asyncio
import ssl
from collections.abc import Callable
from dataclasses import dataclass

from magnetar.ledger.errors import LedgerError
from magnetar.ledger.ports import Listener, Network
from magnetar.ledger.system import SystemNetwork, listener_of
from magnetar.ledger.turns import Opening, opening

__all__ = ["ClientTls", "ServerTls", "TlsConfigError", "TlsFiles", "TlsNetwork"]


class TlsConfigError(LedgerError):
    """A certificate, key or list of authorities cannot be used; the message says which, and why."""


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """Paths of PEM files; empty if there is none."""

    certificate: str = ""
    key: str = ""
    authorities: str = ""
    """Certificate authorities that must have signed the other side's certificate."""


class ServerTls:
    """TLS of a server: shows a certificate, and may request the client's."""

    def __init__(self, files: TlsFiles, *, requires_certificate: bool = False) -> None:
        """Load the files.

        Raises:
            TlsConfigError
        """
        self._files = files
        self._requires = requires_certificate
        self._current = self._made()
        # A listener keeps this context for ever; each handshake switches to the current one.
        self.context = self._made()
        self.context.sni_callback = self._choose

    def reload(self) -> None:
        """Load the files again, for future handshakes.

        Raises:
            TlsConfigError: they cannot be used; the previous ones stay in force.
        """
        self._current = self._made()

    def _choose(self, connection: ssl.SSLObject, _name: str | None, _: ssl.SSLContext) -> None:
        connection.context = self._current

    def _made(self) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        _load(context, self._files)
        if self._files.authorities:
            context.verify_mode = ssl.CERT_REQUIRED if self._requires else ssl.CERT_OPTIONAL
        # A ticket would let a client resume whose certificate is no longer accepted.
        context.num_tickets = 0
        context.options |= ssl.OP_NO_TICKET
        return context


class ClientTls:
    """TLS of a client: checks the server's certificate, and may show a certificate of its own."""

    def __init__(self, files: TlsFiles, *, checks_host: bool = True) -> None:
        """Load the files. Without `authorities`, those of the system are used.

        Raises:
            TlsConfigError
        """
        self._files = files
        self._checks_host = checks_host
        self.context = self._made()

    def reload(self) -> None:
        """Load the files again, for future connections.

        Raises:
            TlsConfigError: they cannot be used; the previous ones stay in force.
        """
        self.context = self._made()

    def _made(self) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.check_hostname = self._checks_host
        if not self._files.authorities:
            context.load_default_certs()
        _load(context, self._files)
        return context


def _load(context: ssl.SSLContext, files: TlsFiles) -> None:
    if files.certificate:
        try:
            # No password: a prompt would stop the process at a terminal.
            context.load_cert_chain(files.certificate, files.key or None, password=lambda: b"")
        except (OSError, ValueError) as error:
            raise TlsConfigError(
                f"cannot use the certificate {files.certificate} with the key {files.key}: "
                f"{_reason(error)}"
            ) from error
    if files.authorities:
        try:
            context.load_verify_locations(files.authorities)
        except (OSError, ValueError) as error:
            raise TlsConfigError(
                f"cannot use the authorities in {files.authorities}: {_reason(error)}"
            ) from error


def _reason(error: Exception) -> str:
    if isinstance(error, ssl.SSLError):
        return error.reason or "no PEM"
    return getattr(error, "strerror", None) or str(error) or type(error).__name__


class TlsNetwork:
    """Stream connections over TLS. `connection_made` runs after the handshake."""

    def __init__(
        self,
        *,
        server: ServerTls | None = None,
        client: ClientTls | None = None,
        handshake_timeout_s: float = 10.0,
    ) -> None:
        """Without `server`, listening is plain; without `client`, connecting is."""
        self._server = server
        self._client = client
        self._timeout_s = handshake_timeout_s
        self._plain: Network = SystemNetwork()

    async def connect(
        self, host: str, port: int, factory: Callable[[], asyncio.Protocol], *, timeout_s: float
    ) -> asyncio.Transport:
        if self._client is None:
            return await self._plain.connect(host, port, factory, timeout_s=timeout_s)
        loop = asyncio.get_running_loop()
        async with asyncio.timeout(timeout_s):
            _, opened = await loop.create_connection(
                lambda: Opening(factory()),
                host,
                port,
                ssl=self._client.context,
                ssl_handshake_timeout=timeout_s,
            )
        return opened.transport

    async def listen(
        self, host: str, port: int, factory: Callable[[], asyncio.Protocol]
    ) -> Listener:
        if self._server is None:
            return await self._plain.listen(host, port, factory)
        server = await asyncio.get_running_loop().create_server(
            opening(factory),
            host,
            port,
            backlog=4096,
            ssl=self._server.context,
            ssl_handshake_timeout=self._timeout_s,
        )
        return listener_of(server)
