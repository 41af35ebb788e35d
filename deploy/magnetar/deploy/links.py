"""The network between the servers of a cluster.

It is plain, or TLS with certificates on both sides; with or without a shared secret that both sides
prove to know.
"""

import asyncio
import random
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path

import structlog

from magnetar.broker.security.keys import path_for_people
from magnetar.deploy.shared_secret import make_shared_secret
from magnetar.ledger.errors import LedgerError, SharedSecretConfigError
from magnetar.ledger.link_settings import LinkSettings
from magnetar.ledger.ports import Network
from magnetar.ledger.secret_handshake import parse_secrets
from magnetar.ledger.secret_network import SecretNetwork
from magnetar.ledger.system import SystemNetwork
from magnetar.ledger.tls import ClientTls, ServerTls, TlsFiles, TlsNetwork

_log = structlog.get_logger(__name__)

Reload = Callable[[], None]


def link_network(
    settings: LinkSettings,
    opened: AsyncExitStack | None = None,
    *,
    serves: bool = False,
) -> Network:
    """Make the network of a ledger client, or of a bookie, which also `serves`.

    Changed files are reloaded until `opened` is closed; without `opened` they are read once.

    Raises:
        TlsConfigError, SharedSecretConfigError: a file cannot be used.
    """
    network: Network = SystemNetwork()
    parts: list[tuple[Sequence[str], Reload]] = []
    if settings.has_tls:
        files = TlsFiles(settings.tls_certificate_file, settings.tls_key_file, settings.tls_ca_file)
        client = ClientTls(files, checks_host=settings.tls_checks_host)
        server = ServerTls(files, requires_certificate=True) if serves else None
        network = TlsNetwork(server=server, client=client)
        paths = [files.certificate, files.key, files.authorities]
        parts.append((paths, partial(_reload_tls, client, server)))
    path = settings.shared_secret_file
    if path:
        if settings.shared_secret_create:
            make_shared_secret(Path(path))
        network = guarded = SecretNetwork(
            network,
            _secrets_in(path),
            source=random.SystemRandom(),
            handshake_timeout_s=settings.secret_handshake_timeout_ms / 1000,
            handshakes_max=settings.secret_handshakes_max,
            is_optional=settings.shared_secret_optional,
        )

        def reload() -> None:
            guarded.secrets = _secrets_in(path)

        parts.append(([path], reload))
    if opened is not None and settings.tls_reload_s:
        # Each part on its own: a broken certificate must not keep a secret in force that leaked.
        for part in parts:
            following = asyncio.get_running_loop().create_task(
                _follow(*part, settings.tls_reload_s), name="link-files"
            )
            opened.callback(following.cancel)
    return network


def _reload_tls(client: ClientTls, server: ServerTls | None) -> None:
    client.reload()
    if server is not None:
        server.reload()


def _secrets_in(path: str) -> tuple[bytes, ...]:
    try:
        data = Path(path).read_bytes()
    except OSError as error:
        raise SharedSecretConfigError(
            f"cannot read shared_secret_file {path_for_people(path)}: {error.strerror}"
        ) from error
    return parse_secrets(data, where=path)


async def _follow(paths: Sequence[str], reload: Reload, interval_s: float) -> None:
    known = _contents(paths)
    while True:
        await asyncio.sleep(interval_s)
        found = _contents(paths)
        if found == known:
            continue
        try:
            reload()
        except LedgerError as error:
            # The former files stay in force; a certificate and its key change one after the other.
            _log.warning("link_files_refused", error=str(error))
            continue
        except Exception:  # noqa: BLE001 - a defect must not end the following of the files
            _log.exception("link_files_refused")
            continue
        known = found
        _log.info("link_files_reloaded")


def _contents(paths: Sequence[str]) -> list[bytes]:
    found = []
    for path in paths:
        try:
            found.append(Path(path).read_bytes())
        except OSError:
            found.append(b"")
    return found
