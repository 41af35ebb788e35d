"""An encrypted object: what was copied comes back with the key, and nothing else ever does."""

import os
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from magnetar.ledger.digest import codec_for
from magnetar.ledger.errors import ObjectError, ObjectKeyError
from magnetar.ledger.offloading.object_builder import ObjectBuilder
from magnetar.ledger.offloading.object_encryption import ObjectKeyRing
from magnetar.ledger.offloading.object_format import HEADER_BYTES, check_header, run_payloads
from magnetar.ledger.offloading.object_key_file import parse_object_keys
from magnetar.ledger.wire import encode_block
from tests.ledger_objects import NAME, closed_ledger, footer_in

payloads = st.lists(st.binary(max_size=40), min_size=1, max_size=30)
secrets = st.binary(min_size=32, max_size=32)


def built(values: Sequence[bytes], secret: bytes) -> bytes:
    metadata = closed_ledger(values)
    codec = codec_for(metadata)
    ring = ObjectKeyRing({"k": secret}, "k", random_bytes=os.urandom)
    building = ObjectBuilder(
        metadata, codec, NAME.attempt, instance_id="i", log="/l", made_by="test", keys=ring
    )
    pieces = building.add(encode_block(codec.seal(0, -1, 0, values)))
    data = b"".join([*pieces, *building.finish()])
    assert len(data) == building.size_bytes
    assert footer_in(data).check == building.check
    return data


def read(data: bytes, values: Sequence[bytes], secret: bytes) -> list[bytes]:
    """All payloads of an object, with every check that a reader makes."""
    check_header(data[:HEADER_BYTES], NAME)
    footer = footer_in(data)
    cipher = footer.cipher(ObjectKeyRing({"k": secret}))
    codec = codec_for(closed_ledger(values))
    found: list[bytes] = []
    for number, run in enumerate(footer.runs):
        piece = data[run.offset : run.offset + run.size_bytes]
        found += run_payloads(piece, footer, number, codec, cipher)
    return found


@given(payloads, secrets)
def test_what_was_encrypted_is_read_with_its_key(values: list[bytes], secret: bytes) -> None:
    assert read(built(values, secret), values, secret) == values


@given(payloads, secrets, secrets)
def test_another_key_opens_nothing(values: list[bytes], secret: bytes, other: bytes) -> None:
    if secret != other:
        with pytest.raises(ObjectKeyError):
            read(built(values, secret), values, other)


@given(payloads, secrets, st.data())
def test_a_changed_byte_is_refused_wherever_it_is(
    values: list[bytes], secret: bytes, data: st.DataObject
) -> None:
    changed = bytearray(built(values, secret))
    changed[data.draw(st.integers(0, len(changed) - 1))] ^= data.draw(st.integers(1, 255))
    with pytest.raises(ObjectError):
        read(bytes(changed), values, secret)


@given(st.text() | st.binary().map(lambda data: data.hex(" ", 32)))
def test_any_text_is_a_file_of_keys_or_is_refused(text: str) -> None:
    try:
        keys = parse_object_keys(text, where="it")
    except ObjectError:
        return
    assert keys
    assert all(len(secret) == 32 for secret in keys.values())
