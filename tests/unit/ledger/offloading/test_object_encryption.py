"""Encrypted objects: their recorded bytes, what a reader without the key is told, and rotation."""

import itertools
import os
import struct
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from magnetar.ledger.digest import codec_for
from magnetar.ledger.errors import (
    FutureObjectVersionError,
    InvariantError,
    ObjectDamagedError,
    ObjectKeyError,
)
from magnetar.ledger.offloading.directory_store import DirectoryStore
from magnetar.ledger.offloading.object_builder import ObjectBuilder
from magnetar.ledger.offloading.object_encryption import (
    NO_KEYS,
    ObjectIdentity,
    ObjectKeyRing,
    RunCipher,
)
from magnetar.ledger.offloading.object_format import (
    HEADER_BYTES,
    TRAILER_BYTES,
    U32,
    ObjectFooter,
    ObjectName,
    ObjectVerifier,
    check_header,
    check_run,
    crc32c_of,
    extend_crc32c,
    open_run,
    run_payloads,
)
from magnetar.ledger.offloading.object_reader import ObjectReads
from magnetar.ledger.settings import ObjectReadSettings
from magnetar.ledger.system import SystemClock
from magnetar.ledger.wire import encode_block
from tests.ledger_objects import NAME, closed_ledger, footer_in
from tests.unit.ledger.offloading.recorded_objects import (
    DATA_KEY,
    ENCRYPTED,
    INSTANCE_ID,
    KEY_ID,
    LOG,
    PLAIN,
    SECRET,
    VALUES,
)

RING = ObjectKeyRing({KEY_ID: SECRET}, KEY_ID)
OTHER_SECRET = bytes(reversed(SECRET))
CODEC = codec_for(closed_ledger(VALUES))
HEAD_BYTES = 16


def encrypted(ring: ObjectKeyRing = RING, values: list[bytes] | None = None) -> bytes:
    """An object as the offloader builds it, out of made up random bytes."""
    values = VALUES if values is None else values
    numbers = itertools.count(1)
    ring = replace(ring, random_bytes=lambda count: bytes([next(numbers)]) * count)
    metadata = closed_ledger(values)
    codec = codec_for(metadata)
    building = ObjectBuilder(
        metadata,
        codec,
        NAME.attempt,
        instance_id=INSTANCE_ID,
        log=LOG,
        made_by="test",
        keys=ring,
    )
    times = [1, *[3] * (len(values) - 1)]
    pieces = building.add(encode_block(codec.seal(0, -1, 0, values)), publish_ms=times)
    return b"".join([*pieces, *building.finish()])


def run_in(data: bytes, number: int = 0) -> bytes:
    place = footer_in(data).runs[number]
    return data[place.offset : place.offset + place.size_bytes]


def payloads_in(data: bytes, ring: ObjectKeyRing) -> list[bytes]:
    footer = footer_in(data)
    check_header(data[:HEADER_BYTES], NAME)
    cipher = footer.cipher(ring)
    return [
        payload
        for number in range(len(footer.runs))
        for payload in run_payloads(run_in(data, number), footer, number, CODEC, cipher)
    ]


async def put(store: DirectoryStore, key: str, data: bytes) -> None:
    async def pieces() -> AsyncIterator[bytes]:
        yield data

    await store.put(key, pieces())


# Bytes


def test_an_object_of_the_release_without_encryption_is_read_with_keys_and_without() -> None:
    assert payloads_in(PLAIN, NO_KEYS) == VALUES
    assert payloads_in(PLAIN, RING) == VALUES


def test_an_encrypted_object_has_the_recorded_bytes() -> None:
    assert encrypted() == ENCRYPTED
    assert payloads_in(ENCRYPTED, RING) == VALUES


def test_the_recorded_run_opens_by_the_rules_of_the_format_page_alone() -> None:
    run = run_in(ENCRYPTED)
    identity = struct.pack(">q16sH", *NAME, len(INSTANCE_ID)) + f"{INSTANCE_ID}{LOG}".encode()
    wrapped = footer_in(ENCRYPTED).description.encryption
    assert wrapped is not None
    name = struct.pack(">H", len(KEY_ID)) + KEY_ID.encode()
    nonce, sealed = wrapped.wrapped[:12], wrapped.wrapped[12:]
    assert AESGCM(SECRET).decrypt(nonce, sealed, name + identity) == DATA_KEY
    block = AESGCM(DATA_KEY).decrypt(bytes(12), run[HEAD_BYTES:-4], run[:HEAD_BYTES] + identity)
    assert block == run_in(PLAIN)[HEAD_BYTES:-4]


def test_a_release_without_encryption_refuses_it_by_its_version() -> None:
    # That is all that such a release looks at: 1 is what it wants at both places.
    trailer = ENCRYPTED[-TRAILER_BYTES:]
    assert [
        struct.unpack_from(">H", each, at)[0] for each, at in ((ENCRYPTED, 8), (trailer, 40))
    ] == [
        2,
        2,
    ]
    assert struct.unpack_from(">H", PLAIN[-TRAILER_BYTES:], 40) == (1,)


@pytest.mark.parametrize(("version", "flags"), [(1, 1), (2, 0), (2, 3), (3, 1)])
def test_an_unknown_version_or_flag_is_refused_in_header_and_trailer(
    version: int, flags: int
) -> None:
    header = bytearray(ENCRYPTED[:HEADER_BYTES])
    struct.pack_into(">H2xI", header, 8, version, flags)
    header[-4:] = U32.pack(crc32c_of(bytes(header[:-4])))
    with pytest.raises(FutureObjectVersionError, match=f"version {version} with flags {flags:#x}"):
        check_header(bytes(header), NAME)
    data = bytearray(ENCRYPTED)
    at = len(data) - TRAILER_BYTES
    struct.pack_into(">H2xI", data, at + 40, version, flags)
    data[at + 52 : at + 56] = U32.pack(extend_crc32c(NAME.checksum, bytes(data[at : at + 52])))
    with pytest.raises(FutureObjectVersionError, match="use a newer one"):
        footer_in(bytes(data))


def test_no_payload_and_no_key_is_in_an_encrypted_object() -> None:
    data = encrypted(values=[b"a payload that can be told from noise"])
    for hidden in (b"told from noise", SECRET, DATA_KEY):
        assert hidden not in data


# Checks without keys, and what they cannot see


def test_checksums_hold_without_a_key_and_packets_need_one() -> None:
    footer = footer_in(ENCRYPTED)
    check_run(run_in(ENCRYPTED), footer, 0)
    with pytest.raises(ObjectKeyError, match=r"'2026'.*read without keys"):
        open_run(run_in(ENCRYPTED), footer, 0)


def forged(data: bytes, run: bytes, number: int) -> tuple[bytes, ObjectFooter]:
    """A run put at the place of another one by somebody who mends all checksums."""
    head = struct.unpack(">IIq", run_in(data, number)[:HEAD_BYTES])
    body = struct.pack(">IIq", *head) + run[HEAD_BYTES:-4]
    checksum = extend_crc32c(NAME.checksum, body)
    footer = footer_in(data)
    runs = list(footer.runs)
    runs[number] = runs[number]._replace(checksum=checksum, size_bytes=len(body) + 4)
    return body + U32.pack(checksum), replace(footer, runs=tuple(runs))


def large() -> list[bytes]:
    return [bytes([number]) * (1 << 20) for number in range(3)]


def test_a_run_does_not_pass_for_another_one_even_if_its_checksum_is_mended() -> None:
    data = encrypted(values=large())
    run, footer = forged(data, run_in(data, 1), 0)
    check_run(run, footer, 0)
    with pytest.raises(ObjectDamagedError, match="somebody changed the run"):
        open_run(run, footer, 0, footer.cipher(RING))
    run, footer = forged(data, run_in(data, 1), 1)
    assert open_run(run, footer, 1, footer.cipher(RING)).lengths


def test_an_object_whose_description_was_exchanged_does_not_open() -> None:
    footer = footer_in(ENCRYPTED)
    for described in (
        replace(footer.description, instance_id="another"),
        replace(footer.description, log="/another"),
    ):
        with pytest.raises(ObjectKeyError, match="its description was changed"):
            replace(footer, description=described).cipher(RING)


@pytest.mark.parametrize("name", [NAME._replace(ledger_id=8), NAME._replace(attempt=bytes(16))])
def test_a_data_key_is_of_no_use_for_another_object(name: ObjectName) -> None:
    footer = replace(footer_in(ENCRYPTED), name=name)
    with pytest.raises(ObjectKeyError):
        footer.cipher(RING)


@pytest.mark.parametrize("at", [0, 5, HEAD_BYTES, -21, -5])
def test_a_changed_byte_is_refused_even_if_its_checksum_is_mended(at: int) -> None:
    footer = footer_in(ENCRYPTED)
    changed = bytearray(run_in(ENCRYPTED))
    changed[at] ^= 1
    body = bytes(changed[:-4])
    checksum = extend_crc32c(NAME.checksum, body)
    place = footer.runs[0]._replace(checksum=checksum)
    with pytest.raises(ObjectDamagedError):
        open_run(body + U32.pack(checksum), replace(footer, runs=(place,)), 0, footer.cipher(RING))


def test_a_run_number_is_encrypted_once_under_one_data_key() -> None:
    cipher = RunCipher(DATA_KEY, ObjectIdentity(INSTANCE_ID, LOG, *NAME))
    cipher.seal(0, b"", b"one")
    with pytest.raises(InvariantError, match="run 0 was encrypted before"):
        cipher.seal(0, b"", b"two")


# Keys


def test_a_missing_key_is_named_with_the_object_and_what_to_do() -> None:
    with pytest.raises(ObjectKeyError) as caught:
        footer_in(ENCRYPTED).cipher(replace(NO_KEYS, source="objectKeyFile"))
    text = str(caught.value)
    assert caught.value.key_id == KEY_ID
    assert not caught.value.retryable
    for part in (KEY_ID, str(NAME), "add it to the file that objectKeyFile names"):
        assert part in text


def test_another_key_under_the_same_id_is_refused_and_no_key_is_shown() -> None:
    wrong = ObjectKeyRing({KEY_ID: OTHER_SECRET})
    with pytest.raises(ObjectKeyError, match="does not open it") as caught:
        footer_in(ENCRYPTED).cipher(wrong)
    for shown in (str(caught.value), repr(caught.value), repr(wrong), repr(RING)):
        for secret in (SECRET, OTHER_SECRET):
            assert secret.hex() not in shown
            assert repr(secret) not in shown


def test_after_a_rotation_old_objects_are_read_and_new_ones_have_the_new_key() -> None:
    rotated = ObjectKeyRing({KEY_ID: SECRET, "2027": OTHER_SECRET}, "2027")
    assert payloads_in(ENCRYPTED, rotated) == VALUES
    data = encrypted(rotated)
    wrapped = footer_in(data).description.encryption
    assert wrapped is not None
    assert wrapped.key_id == "2027"
    assert payloads_in(data, ObjectKeyRing({"2027": OTHER_SECRET})) == VALUES
    with pytest.raises(ObjectKeyError, match="'2027'"):
        payloads_in(data, RING)


def test_without_a_key_for_new_objects_they_stay_plain() -> None:
    data = encrypted(ObjectKeyRing({KEY_ID: SECRET}))
    assert footer_in(data).description.encryption is None
    assert payloads_in(data, NO_KEYS) == VALUES


def test_two_builders_of_one_attempt_share_no_data_key() -> None:
    metadata = closed_ledger(VALUES)
    ring = replace(RING, random_bytes=os.urandom)

    def built() -> bytes:
        building = ObjectBuilder(
            metadata, CODEC, NAME.attempt, instance_id="i", log="l", made_by="t", keys=ring
        )
        pieces = building.add(encode_block(CODEC.seal(0, -1, 0, VALUES)))
        return b"".join([*pieces, *building.finish()])

    one, other = built(), built()
    assert run_in(one) != run_in(other)
    assert payloads_in(one, RING) == payloads_in(other, RING) == VALUES


def test_a_ledger_is_forgotten_only_if_its_encrypted_object_opens() -> None:
    footer = footer_in(ENCRYPTED)
    metadata = closed_ledger(VALUES)
    blind = ObjectVerifier(footer, metadata, CODEC, footer.check)
    with pytest.raises(ObjectKeyError):
        blind.add(run_in(ENCRYPTED))
    verifier = ObjectVerifier(footer, metadata, CODEC, footer.check, footer.cipher(RING))
    verifier.add(run_in(ENCRYPTED))
    verifier.finish()


# Readers


async def test_a_reader_without_the_key_is_refused_and_others_read_on(tmp_path: Path) -> None:
    store = DirectoryStore(tmp_path)
    await put(store, "old", ENCRYPTED)
    await put(store, "new", encrypted(ObjectKeyRing({"2027": OTHER_SECRET}, "2027")))
    await put(store, "plain", PLAIN)
    reads = ObjectReads(ObjectReadSettings(), SystemClock(), keys=RING)
    for _ in range(2):
        with pytest.raises(ObjectKeyError, match="'2027'"):
            await reads.open(store, "new", NAME)
    for key in ("old", "plain"):
        reader = await reads.open(store, key, NAME)
        assert await reader.read(0, 5, bytes_max=1 << 20) == VALUES
    assert reads.readers == 2
    await reads.close()
    assert reads.window_bytes == 0
