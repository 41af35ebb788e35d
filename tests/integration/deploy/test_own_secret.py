"""A standalone has a shared secret of its own, and who may, finds it."""

import stat
from pathlib import Path

import pytest

from magnetar.arrow.stored.source_options import SourceOptions
from magnetar.deploy.options import Sources
from magnetar.deploy.shared_secret import with_own_secret, with_secret_beside
from magnetar.ledger.errors import BookieSecretError
from magnetar.ledger.metadata.url import open_store
from magnetar.ledger.ports import Network
from magnetar.ledger.registration import BookieRegistry
from magnetar.ledger.secret_handshake import parse_secrets
from magnetar.ledger.settings import LedgerSettings
from magnetar.ledger.system import SystemNetwork
from tests.integration.deploy.commands import magnetar
from tests.integration.ledger.test_shared_secret import ask_bookie
from tests.standalone import Standalone

PERF = ("--messages", "10", "--quorum", "1,1,1")


def secret_in(directory: Path) -> str:
    path = directory / "shared-secret"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    (secret,) = parse_secrets(path.read_bytes(), where=str(path))
    return secret.decode()


async def answer_to_a_stranger(metadata_url: str) -> object:
    """What somebody gets who reaches a bookie's port, and knows where it is."""
    store = await open_store(metadata_url)
    registry = BookieRegistry(store)
    await registry.start()
    try:
        network: Network = SystemNetwork()
        first = next(iter(registry.registered()))
        return await ask_bookie(first, registry, network)
    finally:
        await registry.close()
        await store.close()


async def test_the_bookies_of_a_standalone_turn_strangers_away(tmp_path: Path) -> None:
    with Standalone(tmp_path / "data", arguments=("--log-level", "debug")) as server:
        secret = secret_in(server.directory)
        answer = await answer_to_a_stranger(server.metadata_url)
        assert isinstance(answer, BookieSecretError), answer
        assert magnetar("produce", "t", "-m", "one", "--url", server.url).status == 0
        # A tool that is given the metadata finds the secret beside it.
        done = magnetar("perf", "ledger", "--metadata", server.metadata_url, *PERF)
        assert done.status == 0, done.stderr
        assert server.terminate() == 0
        server.start()
        assert secret_in(server.directory) == secret, "made once"
        assert magnetar("read", "t", "--url", server.url).stdout.split() == ["one"]
        assert server.terminate() == 0
        assert secret not in server.log_text()
        assert secret not in done.stdout + done.stderr


async def test_a_secret_that_is_named_is_taken_instead(tmp_path: Path) -> None:
    named = tmp_path / "named"
    named.write_text("a secret that somebody has written down\n")
    config = tmp_path / "magnetar.toml"
    line = f"shared_secret_file = '{named}'"
    config.write_text("\n".join(["[bookie]", line, "[ledger]", line]))
    with Standalone(tmp_path / "data", arguments=("--config", str(config))) as server:
        assert not (server.directory / "shared-secret").exists()
        answer = await answer_to_a_stranger(server.metadata_url)
        assert isinstance(answer, BookieSecretError), answer
        assert magnetar("produce", "t", "-m", "one", "--url", server.url).status == 0


@pytest.mark.parametrize("component", ["bookie", "ledger"])
def test_who_names_one_or_none_is_taken_at_his_word(tmp_path: Path, component: str) -> None:
    variable = f"MAGNETAR_{component}_SHARED_SECRET_FILE".upper()
    for sources in (
        Sources({component: {"shared_secret_file": "/s"}}, {}),
        Sources({}, {variable: "/s"}),
        Sources({}, {variable: ""}),
    ):
        assert with_own_secret(sources, tmp_path) is sources


def test_other_settings_are_kept_beside_the_secret(tmp_path: Path) -> None:
    sources = with_own_secret(Sources({"ledger": {"request_timeout_s": 7}}, {}), tmp_path)
    settings = sources.component(LedgerSettings, "ledger")
    assert settings.request_timeout_s == 7
    assert settings.shared_secret_file == str(tmp_path / "shared-secret")


def test_the_secret_beside_an_embedded_store_is_for_those_who_name_none(tmp_path: Path) -> None:
    url, nothing = f"embedded:{tmp_path / 'metadata.db'}", Sources({}, {})
    assert with_secret_beside(nothing, url) is nothing
    (tmp_path / "shared-secret").write_text("s" * 32)
    found = with_secret_beside(nothing, url).component(LedgerSettings, "ledger")
    assert found.shared_secret_file == str(tmp_path / "shared-secret")
    assert with_secret_beside(nothing, "zk://host:2181/magnetar") is nothing
    named = Sources({"ledger": {"shared_secret_file": "/s"}}, {})
    assert with_secret_beside(named, url) is named


def test_sparks_executors_find_it_as_well(tmp_path: Path) -> None:
    options = {
        "service.url": "pulsar://127.0.0.1:6650",
        "admin.url": "http://127.0.0.1:8080",
        "metadata.url": f"embedded:{tmp_path / 'metadata.db'}",
        "topic": "t",
    }
    assert SourceOptions.read(options).settings.bookie_security.secret_file == ""
    (tmp_path / "shared-secret").write_text("s" * 32)
    found = SourceOptions.read(options).settings.bookie_security.secret_file
    assert found == str(tmp_path / "shared-secret")
    options["bookieSharedSecretFile"] = "/mine"
    assert SourceOptions.read(options).settings.bookie_security.secret_file == "/mine"
