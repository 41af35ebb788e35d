"""The shared secret that servers make for themselves: once, whole, and for its owner alone."""

import os
import stat
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from magnetar.deploy.links import link_network
from magnetar.deploy.shared_secret import make_shared_secret
from magnetar.ledger.errors import SharedSecretConfigError
from magnetar.ledger.secret_handshake import parse_secrets
from magnetar.ledger.secret_network import SecretNetwork
from magnetar.ledger.settings import LedgerSettings


@pytest.fixture(autouse=True)
def _open_umask() -> Iterator[None]:
    before = os.umask(0)
    yield
    os.umask(before)


def test_it_is_made_once_and_for_its_owner_alone(tmp_path: Path) -> None:
    path = tmp_path / "secret"
    make_shared_secret(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    (first,) = parse_secrets(path.read_bytes(), where="it")
    make_shared_secret(path)
    assert parse_secrets(path.read_bytes(), where="it") == (first,)
    make_shared_secret(tmp_path / "another")
    assert (tmp_path / "another").read_bytes() != path.read_bytes()
    assert sorted(each.name for each in tmp_path.iterdir()) == ["another", "secret"]


def test_one_that_is_there_is_left_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "secret"
    path.write_bytes(b"")
    make_shared_secret(path)
    assert path.read_bytes() == b"", "who reads it says that it is empty"


def test_servers_that_start_at_once_agree_on_one(tmp_path: Path) -> None:
    path = tmp_path / "secret"

    def make(_: int) -> bytes:
        make_shared_secret(path)
        return path.read_bytes()

    with ThreadPoolExecutor(16) as threads:
        assert len(set(threads.map(make, range(64)))) == 1
    assert [each.name for each in tmp_path.iterdir()] == ["secret"]


def test_a_network_makes_it_when_told_to(tmp_path: Path) -> None:
    path = tmp_path / "secret"
    settings = LedgerSettings(shared_secret_file=str(path))
    with pytest.raises(SharedSecretConfigError, match="cannot read shared_secret_file"):
        link_network(settings)
    made = link_network(settings.model_copy(update={"shared_secret_create": True}))
    found = link_network(settings)
    assert isinstance(made, SecretNetwork)
    assert isinstance(found, SecretNetwork)
    assert made.secrets == found.secrets


def test_a_place_where_it_cannot_be_is_told(tmp_path: Path) -> None:
    with pytest.raises(SharedSecretConfigError, match="cannot create shared_secret_file"):
        make_shared_secret(tmp_path / "missing" / "secret")
