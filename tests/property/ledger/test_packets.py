"""Packets of every digest type: what was sealed is opened, any other bytes are refused.

DUMMY has no digest: there only another ledger or entry is noticed, which is what it promises.
"""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from magnetar.ledger.digest import OpenedEntry, PacketCodec, master_key, packet_codec
from magnetar.ledger.errors import DigestMismatchError
from magnetar.ledger.ledger_metadata import DigestType
from magnetar.ledger.wire import PACKET_HEADER, encode_block

int64 = st.integers(0, (1 << 63) - 1)
small = st.integers(0, 1 << 40)
passwords = st.binary(max_size=12)
payload_lists = st.lists(st.binary(max_size=80), min_size=1, max_size=8)
CHECKED = [each for each in DigestType if each is not DigestType.DUMMY]

all_types = pytest.mark.parametrize("digest_type", list(DigestType))
checked_types = pytest.mark.parametrize("digest_type", CHECKED)


def opens(codec: PacketCodec, packet: bytes, entry_id: int) -> OpenedEntry | None:
    try:
        return codec.open_packet(packet, entry_id)
    except DigestMismatchError:
        return None


@all_types
@given(int64, passwords, small, small, payload_lists)
def test_sealed_entries_are_opened_with_their_ids_lacs_and_lengths(
    digest_type: DigestType,
    ledger_id: int,
    password: bytes,
    first: int,
    length_before: int,
    payloads: list[bytes],
) -> None:
    codec = packet_codec(ledger_id, digest_type, password)
    packets = codec.seal(first, first - 1, length_before, payloads)
    length = length_before
    for at, (packet, payload) in enumerate(zip(packets, payloads, strict=True)):
        length += len(payload)
        expected = OpenedEntry(first + at, first - 1, length, payload)
        assert len(packet) == codec.overhead_bytes + len(payload)
        assert codec.open_packet(packet, first + at) == expected
        assert codec.open_some_packet(packet) == expected
    block = encode_block(packets)
    assert codec.open_payloads(block, first, len(payloads)) == (payloads, None)
    assert codec.open_payloads(block, first, 1) == (payloads[:1], None)


@all_types
@given(int64, passwords, small, small, payload_lists)
def test_recovery_changes_nothing_but_the_lac(
    digest_type: DigestType,
    ledger_id: int,
    password: bytes,
    first: int,
    length_before: int,
    payloads: list[bytes],
) -> None:
    codec = packet_codec(ledger_id, digest_type, password)
    packets = codec.seal(first, first - 1, length_before, payloads)
    entries = [codec.open_packet(packet, first + at) for at, packet in enumerate(packets)]
    again = codec.reseal(-1, entries)
    for entry, packet in zip(entries, again, strict=True):
        assert codec.open_packet(packet, entry.entry_id) == entry._replace(last_add_confirmed=-1)


@checked_types
@given(int64, passwords, small, payload_lists, st.data())
def test_i20_any_changed_byte_is_noticed_in_both_ways_of_opening(
    digest_type: DigestType,
    ledger_id: int,
    password: bytes,
    first: int,
    payloads: list[bytes],
    data: st.DataObject,
) -> None:
    codec = packet_codec(ledger_id, digest_type, password)
    packets = codec.seal(first, first - 1, 0, payloads)
    which = data.draw(st.integers(0, len(packets) - 1))
    at = data.draw(st.integers(0, len(packets[which]) - 1))
    spoiled = bytearray(packets[which])
    spoiled[at] ^= data.draw(st.integers(1, 255))
    assert opens(codec, bytes(spoiled), first + which) is None
    packets[which] = bytes(spoiled)
    good, error = codec.open_payloads(encode_block(packets), first, len(packets))
    assert good == payloads[:which]
    assert error is not None


@all_types
@given(int64, int64, passwords, small, small, st.binary(max_size=40))
def test_another_entry_or_ledger_is_noticed(
    digest_type: DigestType,
    ledger_id: int,
    other_ledger: int,
    password: bytes,
    entry_id: int,
    other_entry: int,
    payload: bytes,
) -> None:
    codec = packet_codec(ledger_id, digest_type, password)
    (packet,) = codec.seal(entry_id, -1, 0, [payload])
    assert (opens(codec, packet, other_entry) is None) is (other_entry != entry_id)
    foreign = packet_codec(other_ledger, digest_type, password)
    assert (opens(foreign, packet, entry_id) is None) is (other_ledger != ledger_id)
    _, error = codec.open_payloads(encode_block([packet, packet]), entry_id, 2)
    assert error is not None, "the second is not the entry behind the first"


@all_types
@given(st.binary(max_size=120), small)
def test_arbitrary_bytes_are_an_entry_or_our_error(
    digest_type: DigestType, data: bytes, entry_id: int
) -> None:
    codec = packet_codec(7, digest_type, b"secret")
    found = opens(codec, data, entry_id)
    if found is not None:
        assert digest_type is DigestType.DUMMY
        assert PACKET_HEADER.unpack_from(data)[:2] == (7, entry_id)
    try:
        codec.open_some_packet(data)
        codec.open_lac(data)
    except DigestMismatchError:
        pass
    payloads, error = codec.open_payloads(encode_block([data]), entry_id, 1)
    assert (error is None) is (found is not None)
    assert payloads == ([] if found is None else [found.payload])


@given(int64, small, st.binary(max_size=40), passwords, passwords)
def test_hmac_is_no_use_without_the_password(
    ledger_id: int, entry_id: int, payload: bytes, password: bytes, guess: bytes
) -> None:
    (packet,) = packet_codec(ledger_id, DigestType.HMAC, password).seal(entry_id, -1, 0, [payload])
    other = packet_codec(ledger_id, DigestType.HMAC, guess)
    assert (opens(other, packet, entry_id) is not None) is (password == guess)
    assert (master_key(password) == master_key(guess)) is (password == guess)


@all_types
@given(int64, passwords, st.integers(-1, (1 << 63) - 1))
def test_lac_packets_round_trip(
    digest_type: DigestType, ledger_id: int, password: bytes, lac: int
) -> None:
    codec = packet_codec(ledger_id, digest_type, password)
    assert codec.open_lac(codec.seal_lac(lac)) == lac


@checked_types
@given(int64, passwords, st.integers(-1, 1 << 40), st.data())
def test_a_changed_lac_packet_is_noticed(
    digest_type: DigestType, ledger_id: int, password: bytes, lac: int, data: st.DataObject
) -> None:
    codec = packet_codec(ledger_id, digest_type, password)
    packet = codec.seal_lac(lac)
    at = data.draw(st.integers(0, len(packet) - 1))
    flip = data.draw(st.integers(0, 255))
    spoiled = packet[:at] + (bytes([packet[at] ^ flip]) + packet[at + 1 :] if flip else b"")
    with pytest.raises(DigestMismatchError):
        codec.open_lac(spoiled)
