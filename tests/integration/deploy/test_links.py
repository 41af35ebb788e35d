"""The network between servers follows its files, each part on its own."""

from contextlib import AsyncExitStack
from pathlib import Path

from magnetar.deploy.links import link_network
from magnetar.ledger.secret_network import SecretNetwork
from magnetar.ledger.settings import LedgerSettings
from tests.certificates import Authority
from tests.waiting import settle, until


async def test_a_secret_is_replaced_though_a_certificate_is_broken(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    certificate, key = authority.issue("server")
    secret = tmp_path / "secret"
    secret.write_bytes(b"former" * 8)
    settings = LedgerSettings(
        tls_certificate_file=str(certificate),
        tls_key_file=str(key),
        tls_ca_file=str(authority.path),
        shared_secret_file=str(secret),
        tls_reload_s=0.01,
    )
    async with AsyncExitStack() as opened:
        network = link_network(settings, opened, serves=True)
        assert isinstance(network, SecretNetwork)
        await settle()  # The contents that it compares with are read.
        certificate.write_text("spoiled")
        secret.write_bytes(b"current" * 8)
        await until(lambda: network.secrets == (b"current" * 8,), "the secret is replaced")
