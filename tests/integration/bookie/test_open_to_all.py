"""A bookie serves strangers only if it was told to, wherever they come from."""

import random
from pathlib import Path

import pytest

from magnetar.bookie.bookie import Bookie
from magnetar.bookie.errors import OpenToAllError
from magnetar.bookie.settings import BookieSettings
from magnetar.deploy.links import link_network
from magnetar.ledger.metadata.url import open_store
from magnetar.ledger.system import SystemClock, SystemDisk
from tests.certificates import Authority
from tests.integration.deploy.commands import magnetar
from tests.integration.ledger.cluster import no_fatal_errors


async def start_and_stop(directory: Path, **values: object) -> None:
    store = await open_store(f"embedded:{directory / 'metadata.db'}")
    settings = BookieSettings.model_validate(
        {"bookie_id": "b1", "data_directory": directory / "b1", "port": 0, **values}
    )
    bookie = Bookie(
        settings,
        store,
        clock=SystemClock(),
        network=link_network(settings, serves=True),
        disk=SystemDisk(),
        random=random.Random(1),
        on_fatal=no_fatal_errors,
    )
    try:
        await bookie.start()
        await bookie.stop()
    finally:
        await store.close()


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.7", "bookie-1.example"])
async def test_it_does_not_listen_beyond_loopback_without_a_secret_or_tls(
    tmp_path: Path, host: str
) -> None:
    with pytest.raises(OpenToAllError, match=r"shared_secret_file .* 127\.0\.0\.1, .*--insecure"):
        await start_and_stop(tmp_path, host=host)
    assert not (tmp_path / "b1").exists(), "nothing was touched"


async def test_a_secret_that_is_optional_protects_nothing(tmp_path: Path) -> None:
    with pytest.raises(OpenToAllError, match="shared_secret_optional"):
        await start_and_stop(
            tmp_path,
            host="0.0.0.0",
            shared_secret_file=str(tmp_path / "secret"),
            shared_secret_create=True,
            shared_secret_optional=True,
        )


@pytest.mark.parametrize("host", ["127.0.0.1", "127.0.0.2", "localhost"])
async def test_loopback_takes_nothing(tmp_path: Path, host: str) -> None:
    await start_and_stop(tmp_path, host=host)


async def test_a_secret_or_tls_or_being_told_is_enough(tmp_path: Path) -> None:
    authority = Authority(tmp_path, "cluster")
    certificate, key = authority.issue("server")
    tls = {
        "tls_certificate_file": str(certificate),
        "tls_key_file": str(key),
        "tls_ca_file": str(authority.path),
    }
    secret = {"shared_secret_file": str(tmp_path / "secret"), "shared_secret_create": True}
    for values in (secret, tls, {"insecure": True}):
        await start_and_stop(tmp_path, host="0.0.0.0", **values)


def test_the_command_says_in_one_line_what_to_do(tmp_path: Path) -> None:
    options = ("--metadata", f"embedded:{tmp_path / 'metadata.db'}", "--data", str(tmp_path / "b"))
    ended = magnetar("bookie", *options, "--host", "0.0.0.0", "--port", "0", "--id", "b1")
    assert ended.status == 2, ended.stderr
    (line,) = ended.messages()
    assert "refusing to listen on 0.0.0.0 without a shared secret or TLS" in line
    assert "--insecure" in line
