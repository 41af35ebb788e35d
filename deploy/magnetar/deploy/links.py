"""The network between the servers of a cluster: plain, or TLS with certificates on both sides."""

import asyncio
from collections.abc import Sequence
from contextlib import AsyncExitStack
from pathlib import Path

import structlog

from magnetar.ledger.link_settings import LinkSettings
from magnetar.ledger.ports import Network
from magnetar.ledger.system import SystemNetwork
from magnetar.ledger.tls import ClientTls, ServerTls, TlsConfigError, TlsFiles, TlsNetwork

_log = structlog.get_logger(__name__)


def link_network(
    settings: LinkSettings, opened: AsyncExitStack | None = None, *, serves: bool = False
) -> Network:
    """The network of a ledger client, or of a bookie, which also `serves`.

    The files are followed until `opened` is closed; without it they are read once.

    Raises:
        TlsConfigError: a file cannot be used.
    """
    if not settings.has_tls:
        return SystemNetwork()
    files = TlsFiles(settings.tls_certificate_file, settings.tls_key_file, settings.tls_ca_file)
    client = ClientTls(files, checks_host=settings.tls_checks_host)
    server = ServerTls(files, requires_certificate=True) if serves else None
    if opened is not None and settings.tls_reload_s:
        sides: list[ClientTls | ServerTls] = [client]
        if server is not None:
            sides.append(server)
        following = asyncio.get_running_loop().create_task(
            _follow(files, sides, settings.tls_reload_s), name="link-certificates"
        )
        opened.callback(following.cancel)
    return TlsNetwork(server=server, client=client)


async def _follow(
    files: TlsFiles, sides: Sequence[ClientTls | ServerTls], interval_s: float
) -> None:
    known = _contents(files)
    while True:
        await asyncio.sleep(interval_s)
        found = _contents(files)
        if found == known:
            continue
        try:
            for side in sides:
                side.reload()
        except TlsConfigError as error:
            # The former ones stay in force; a certificate and its key change one by one.
            _log.warning("link_certificates_refused", error=str(error))
            continue
        known = found
        _log.info("link_certificates_reloaded")


def _contents(files: TlsFiles) -> list[bytes]:
    found = []
    for path in (files.certificate, files.key, files.authorities):
        try:
            found.append(Path(path).read_bytes())
        except OSError:
            found.append(b"")
    return found
