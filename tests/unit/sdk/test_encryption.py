"""Encryption of messages: there and back, wrong keys, tampering, rotation."""

from collections.abc import Mapping
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA1
from cryptography.hazmat.primitives.hmac import HMAC
from cryptography.hazmat.primitives.kdf.x963kdf import X963KDF
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
)

from magnetar.sdk import encryption
from magnetar.sdk.encryption import (
    EncryptionKey,
    FileKeyReader,
    MessageDecryptor,
    MessageEncryptor,
)
from magnetar.sdk.errors import CryptoKeyError, DecryptionError
from magnetar.sdk.wire.pulsar_pb2 import EncryptionKeys, MessageMetadata

Private = rsa.RSAPrivateKey | ec.EllipticCurvePrivateKey | ed25519.Ed25519PrivateKey


class Ticking:
    now_s = 0.0

    def monotonic_s(self) -> float:
        return self.now_s

    def wall_ms(self) -> int:
        return 0


class Keys:
    """Key pairs by name."""

    def __init__(self, **pairs: Private) -> None:
        self.pairs = pairs
        self.asked: list[tuple[str, Mapping[str, str]]] = []

    def public_key(self, name: str, metadata: Mapping[str, str]) -> EncryptionKey:
        pem = self.pairs[name].public_key()
        raw = pem.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
        return EncryptionKey(raw, {"version": "7"})

    def private_key(self, name: str, metadata: Mapping[str, str]) -> EncryptionKey:
        self.asked.append((name, metadata))
        if name not in self.pairs:
            raise CryptoKeyError(f"no key {name}")
        return EncryptionKey(
            self.pairs[name].private_bytes(
                Encoding.PEM, PrivateFormat.TraditionalOpenSSL, NoEncryption()
            )
        )


RSA = rsa.generate_private_key(65537, 2048)
PAIRS: dict[str, Private] = {
    "rsa": RSA,
    "p256": ec.generate_private_key(ec.SECP256R1()),
    "p521": ec.generate_private_key(ec.SECP521R1()),
}


def encryptor(keys: Keys, *names: str, clock: Ticking | None = None) -> MessageEncryptor:
    return MessageEncryptor(names, keys, clock=clock or Ticking(), rotation_s=60)


@pytest.mark.parametrize("kind", PAIRS)
@pytest.mark.parametrize("body", [b"", b"x" * 100_000])
def test_who_has_the_private_key_reads_what_was_encrypted(kind: str, body: bytes) -> None:
    keys = Keys(**PAIRS)
    hidden, metadata = encryptor(keys, kind).encrypt(body)
    assert len(hidden) == len(body) + encryption.TAG_BYTES
    decryptor = MessageDecryptor(keys)
    assert decryptor.decrypt(hidden, metadata) == body
    assert decryptor.decrypt(hidden, metadata) == body
    assert keys.asked == [(kind, {"version": "7"})]  # the data key is remembered


def test_any_of_several_keys_will_do() -> None:
    hidden, metadata = encryptor(Keys(**PAIRS), "rsa", "p256").encrypt(b"body")
    assert MessageDecryptor(Keys(p256=PAIRS["p256"])).decrypt(hidden, metadata) == b"body"


def test_a_wrong_key_or_a_changed_message_is_told() -> None:
    keys = Keys(**PAIRS)
    for kind in PAIRS:
        hidden, metadata = encryptor(keys, kind).encrypt(b"body")
        with pytest.raises(DecryptionError, match="no key"):
            MessageDecryptor(Keys()).decrypt(hidden, metadata)
        other: Private = (
            rsa.generate_private_key(65537, 2048)
            if kind == "rsa"
            else ec.generate_private_key(ec.SECP256R1())
        )
        with pytest.raises(DecryptionError, match=kind):
            MessageDecryptor(Keys(**{kind: other})).decrypt(hidden, metadata)
        with pytest.raises(DecryptionError, match="tag"):
            MessageDecryptor(keys).decrypt(hidden[:-1] + bytes([hidden[-1] ^ 1]), metadata)
        for raw in (b"", bytes(10), metadata.encryption_keys[0].value[:-1]):
            metadata.encryption_keys[0].value = raw
            with pytest.raises(DecryptionError):
                MessageDecryptor(keys).decrypt(hidden, metadata)
        metadata.encryption_param = b"short"
        with pytest.raises(DecryptionError, match="IV"):
            MessageDecryptor(keys).decrypt(hidden, metadata)


def test_the_data_key_is_made_anew_when_it_is_old() -> None:
    clock = Ticking()
    writer = encryptor(Keys(**PAIRS), "rsa", clock=clock)
    first = writer.encrypt(b"")[1].encryption_keys[0].value
    clock.now_s = 59
    assert writer.encrypt(b"")[1].encryption_keys[0].value == first
    clock.now_s = 60
    assert writer.encrypt(b"")[1].encryption_keys[0].value != first


def test_each_message_has_an_iv_of_its_own() -> None:
    writer = encryptor(Keys(**PAIRS), "rsa")
    assert len({writer.encrypt(b"same")[1].encryption_param for _ in range(100)}) == 100


def test_remembered_data_keys_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(encryption, "DATA_KEYS_MAX", 2)
    keys = Keys(**PAIRS)
    decryptor = MessageDecryptor(keys)
    sent = [encryptor(keys, "p256").encrypt(b"%d" % at) for at in range(3)]
    for at, (hidden, metadata) in enumerate(sent):
        assert decryptor.decrypt(hidden, metadata) == b"%d" % at
    assert decryptor.decrypt(*sent[0]) == b"0"
    assert len(keys.asked) == 4


def test_keys_that_cannot_be_used_are_told(tmp_path: Path) -> None:
    with pytest.raises(CryptoKeyError, match="Ed25519"):
        encryptor(Keys(odd=ed25519.Ed25519PrivateKey.generate()), "odd")
    (tmp_path / "text.pem").write_text("no key")
    clock = Ticking()
    for path in (tmp_path / "{name}.pem", tmp_path / "missing.pem", tmp_path, Path(".")):
        with pytest.raises(CryptoKeyError, match="key text"):
            MessageEncryptor(["text"], FileKeyReader(str(path)), clock=clock, rotation_s=1)
    with pytest.raises(CryptoKeyError, match="no path"):
        FileKeyReader().private_key("a", {})


class Given:
    """Gives one key for all names, or raises."""

    def __init__(self, pem: bytes | Exception) -> None:
        self.pem = pem

    def public_key(self, name: str, metadata: Mapping[str, str]) -> EncryptionKey:
        if isinstance(self.pem, Exception):
            raise self.pem
        return EncryptionKey(self.pem)

    private_key = public_key


@pytest.mark.parametrize(
    "given",
    [
        # Keys of an algorithm that does not exist, 1.2.3.
        b"-----BEGIN PUBLIC KEY-----\nMAswBAYCKgMDAwABAg==\n-----END PUBLIC KEY-----\n",
        b"-----BEGIN PRIVATE KEY-----\nMA0CAQAwBAYCKgMEAgEC\n-----END PRIVATE KEY-----\n",
        LookupError("the application's own defect"),
    ],
    ids=["public", "private", "reader"],
)
def test_any_failure_of_a_key_or_its_reader_is_an_error_of_encryption(
    given: bytes | Exception,
) -> None:
    with pytest.raises(CryptoKeyError, match="key rsa"):
        encryptor(Given(given), "rsa")  # type: ignore[arg-type]  # Any key reader.
    hidden, metadata = encryptor(Keys(**PAIRS), "rsa").encrypt(b"body")
    with pytest.raises(DecryptionError, match="key rsa"):
        MessageDecryptor(Given(given)).decrypt(hidden, metadata)


def test_a_name_out_of_a_message_leads_to_no_other_folder(tmp_path: Path) -> None:
    reader = FileKeyReader(private_path=str(tmp_path / "{name}.pem"))
    for name in ("../other", "a/b", "..", ""):
        with pytest.raises(CryptoKeyError, match="part of a path"):
            reader.private_key(name, {})


def test_curve_parameters_before_a_key_are_passed_over(tmp_path: Path) -> None:
    keys = Keys(p256=PAIRS["p256"])
    parameters = b"-----BEGIN EC PARAMETERS-----\nBggqhkjOPQMBBw==\n-----END EC PARAMETERS-----\n"
    path = tmp_path / "p256"
    path.write_bytes(parameters + keys.private_key("p256", {}).pem)
    hidden, metadata = encryptor(keys, "p256").encrypt(b"body")
    decryptor = MessageDecryptor(FileKeyReader(private_path=str(path)))
    assert decryptor.decrypt(hidden, metadata) == b"body"


# -- elliptic curves, by other means: what BouncyCastle's "ECIES" does with IESParameterSpec(null,
# null, 128), which is how the Java client uses it. No official client in Python has it.


def their_keys(point: bytes, secret: bytes, data_bytes: int) -> tuple[bytes, bytes]:
    """KDF2 over the point and the secret: 128 bits for the MAC, then the key stream."""
    kdf = X963KDF(SHA1(), 16 + data_bytes, sharedinfo=None)
    both = kdf.derive(point + secret)
    return both[:16], both[16:]


def their_tag(mac_key: bytes, hidden: bytes) -> bytes:
    """HMAC with SHA-1 over the text and the length of an encoding vector that is not there."""
    mac = HMAC(mac_key, SHA1())
    mac.update(hidden + (0).to_bytes(8, "big"))
    return mac.finalize()


def xor(left: bytes, right: bytes) -> bytes:
    return bytes(a ^ b for a, b in zip(left, right, strict=True))


@pytest.mark.parametrize("kind", ["p256", "p521"])
def test_a_data_key_for_a_curve_is_laid_out_as_the_java_client_reads_it(kind: str) -> None:
    keys = Keys(**PAIRS)
    pair = PAIRS[kind]
    assert isinstance(pair, ec.EllipticCurvePrivateKey)
    hidden_body, metadata = encryptor(keys, kind).encrypt(b"body")
    value = metadata.encryption_keys[0].value
    point_bytes = 1 + 2 * ((pair.curve.key_size + 7) // 8)
    point, hidden, tag = value[:point_bytes], value[point_bytes:-20], value[-20:]
    assert point[0] == 4  # uncompressed
    once = ec.EllipticCurvePublicKey.from_encoded_point(pair.curve, point)
    mac_key, stream = their_keys(point, pair.exchange(ec.ECDH(), once), len(hidden))
    assert their_tag(mac_key, hidden) == tag
    data_key = xor(hidden, stream)
    assert AESGCM(data_key).decrypt(metadata.encryption_param, hidden_body, None) == b"body"


@pytest.mark.parametrize("kind", ["p256", "p521"])
def test_a_data_key_for_a_curve_is_read_as_the_java_client_lays_it_out(kind: str) -> None:
    pair = PAIRS[kind]
    assert isinstance(pair, ec.EllipticCurvePrivateKey)
    once = ec.generate_private_key(pair.curve)
    point = once.public_key().public_bytes(Encoding.X962, PublicFormat.UncompressedPoint)
    data_key, iv = bytes(range(32)), bytes(12)
    mac_key, stream = their_keys(point, once.exchange(ec.ECDH(), pair.public_key()), 32)
    hidden = xor(data_key, stream)
    metadata = MessageMetadata(
        encryption_keys=[
            EncryptionKeys(key=kind, value=point + hidden + their_tag(mac_key, hidden))
        ],
        encryption_param=iv,
    )
    body = AESGCM(data_key).encrypt(iv, b"body", None)
    assert MessageDecryptor(Keys(**PAIRS)).decrypt(body, metadata) == b"body"
