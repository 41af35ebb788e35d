"""Messages that producers have encrypted are opened with keys from files."""

from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
)

from magnetar.arrow.stored.encrypted_messages import decryption_of
from magnetar.arrow.stored.errors import OptionError
from magnetar.sdk.encryption import FileKeyReader, MessageEncryptor
from magnetar.sdk.errors import DecryptionError
from magnetar.sdk.ports import SystemClock


@pytest.fixture
def keys(tmp_path: Path) -> Path:
    """A folder with the key pairs `one` and `two`."""
    for name in ("one", "two"):
        private = ec.generate_private_key(ec.SECP256R1())
        (tmp_path / f"{name}.private").write_bytes(
            private.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
        )
        (tmp_path / f"{name}.public").write_bytes(
            private.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
        )
    return tmp_path


def encryptor(keys: Path, name: str) -> MessageEncryptor:
    reader = FileKeyReader(public_path=str(keys / "{name}.public"))
    return MessageEncryptor([name], reader, clock=SystemClock(), rotation_s=1_000)


def test_a_name_in_the_path_is_that_of_the_messages_key(keys: Path) -> None:
    decrypt = decryption_of(str(keys / "{name}.private"))
    assert decrypt is not None
    for name in ("one", "two"):
        body, metadata = encryptor(keys, name).encrypt(b"secret")
        assert decrypt(body, metadata) == b"secret"


def test_a_path_without_a_name_is_one_key(keys: Path) -> None:
    decrypt = decryption_of(str(keys / "one.private"))
    assert decrypt is not None
    assert decrypt(*encryptor(keys, "one").encrypt(b"secret")) == b"secret"
    with pytest.raises(DecryptionError, match="key two"):
        decrypt(*encryptor(keys, "two").encrypt(b"secret"))


def test_a_key_that_is_not_there_is_no_matter_of_single_messages(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match=r"option privateKeyFile: .*No such file"):
        decryption_of(str(tmp_path / "missing"))
    assert decryption_of("") is None
