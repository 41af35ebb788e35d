"""Entry packets: what is sealed opens, and nothing else does."""

import hashlib
import hmac
import zlib

import pytest

from magnetar.ledger.digest import codec_for, master_key, packet_codec
from magnetar.ledger.errors import DigestMismatchError
from magnetar.ledger.ledger_metadata import DigestType, Fragment, LedgerMetadata, LedgerState
from magnetar.ledger.wire import encode_block

CHECKED = [DigestType.CRC32C, DigestType.CRC32, DigestType.HMAC]
"""The types that notice a changed payload."""

every_type = pytest.mark.parametrize("digest_type", list(DigestType))
checked_types = pytest.mark.parametrize("digest_type", CHECKED)


@every_type
def test_a_sealed_entry_opens_with_its_header(digest_type: DigestType) -> None:
    codec = packet_codec(7, digest_type, b"secret")
    first, second = codec.seal(3, 2, 100, [b"abc", b"defgh"])
    assert codec.open_packet(first, 3) == (3, 2, 103, b"abc")
    assert codec.open_packet(second, 4) == (4, 2, 108, b"defgh")


@every_type
def test_one_entry_is_sealed_like_one_of_many(digest_type: DigestType) -> None:
    codec = packet_codec(7, digest_type, b"secret")
    both = codec.seal(3, 2, 100, [b"abc", b"defgh"])
    assert codec.seal(3, 2, 100, [b"abc"]) + codec.seal(4, 2, 103, [b"defgh"]) == both
    assert [codec.seal_one(3, 2, 100, b"abc"), codec.seal_one(4, 2, 103, b"defgh")] == both


@pytest.mark.parametrize(
    ("digest_type", "digest_bytes"),
    [
        (DigestType.CRC32C, 4),
        (DigestType.CRC32, 8),
        (DigestType.HMAC, 20),
        (DigestType.DUMMY, 0),
    ],
)
def test_the_layout_is_the_documented_one(digest_type: DigestType, digest_bytes: int) -> None:
    codec = packet_codec(1, digest_type, b"secret")
    assert codec.overhead_bytes == 32 + digest_bytes
    (packet,) = codec.seal(2, 1, 0, [b"x"])
    assert packet[:32].hex() == ("0000000000000001000000000000000200000000000000010000000000000001")
    assert packet[32 + digest_bytes :] == b"x"
    assert codec.seal_lac(5)[:16].hex() == "00000000000000010000000000000005"
    assert len(codec.seal_lac(5)) == 16 + digest_bytes


def test_the_digests_are_the_named_ones() -> None:
    header = bytes.fromhex("0000000000000001000000000000000200000000000000010000000000000001")
    (packet,) = packet_codec(1, DigestType.CRC32).seal(2, 1, 0, [b"x"])
    assert int.from_bytes(packet[32:40], "big") == zlib.crc32(header + b"x")
    (packet,) = packet_codec(1, DigestType.HMAC, b"secret").seal(2, 1, 0, [b"x"])
    key = hashlib.sha1(b"mac" + b"secret").digest()
    assert packet[32:52] == hmac.digest(key, header + b"x", "sha1")


def test_the_keys_for_bookies_and_for_digests_differ() -> None:
    """Bookies see the master key: with it they must not be able to forge an entry."""
    assert master_key(b"secret") == hashlib.sha1(b"ledgersecret").digest()
    assert master_key(b"secret") != hashlib.sha1(b"macsecret").digest()


def test_an_hmac_of_another_password_does_not_fit() -> None:
    (packet,) = packet_codec(1, DigestType.HMAC, b"secret").seal(0, -1, 0, [b"payload"])
    with pytest.raises(DigestMismatchError, match="entry 0 of ledger 1: HMAC"):
        packet_codec(1, DigestType.HMAC, b"guess").open_packet(packet, 0)


def test_the_metadata_says_which_codec_it_is() -> None:
    metadata = LedgerMetadata(
        ledger_id=1,
        ensemble_size=1,
        write_quorum=1,
        ack_quorum=1,
        state=LedgerState.OPEN,
        last_entry_id=-1,
        length=0,
        ensembles=(Fragment(0, ("b1",)),),
        digest_type=DigestType.HMAC,
        password=b"secret",
        created_ms=0,
        creation_token=0,
    )
    packets = codec_for(metadata).seal(0, -1, 0, [b"payload"])
    assert packets == packet_codec(1, DigestType.HMAC, b"secret").seal(0, -1, 0, [b"payload"])


@checked_types
def test_i20_flipping_any_bit_is_detected(digest_type: DigestType) -> None:
    codec = packet_codec(1, digest_type, b"secret")
    (packet,) = codec.seal(0, -1, 0, [b"payload"])
    for at in range(len(packet)):
        for bit in range(8):
            damaged = bytearray(packet)
            damaged[at] ^= 1 << bit
            with pytest.raises(DigestMismatchError):
                codec.open_packet(bytes(damaged), 0)


@every_type
@pytest.mark.parametrize(("ledger_id", "entry_id"), [(2, 0), (1, 1)])
def test_another_entry_than_the_one_asked_for_is_refused(
    ledger_id: int, entry_id: int, digest_type: DigestType
) -> None:
    (packet,) = packet_codec(1, digest_type, b"secret").seal(0, -1, 0, [b"payload"])
    with pytest.raises(DigestMismatchError, match="asked for entry"):
        packet_codec(ledger_id, digest_type, b"secret").open_packet(packet, entry_id)


@every_type
def test_truncated_packets_are_refused(digest_type: DigestType) -> None:
    codec = packet_codec(1, digest_type, b"secret")
    (packet,) = codec.seal(0, -1, 0, [b""])
    for size in range(len(packet)):
        with pytest.raises(DigestMismatchError):
            codec.open_packet(packet[:size], 0)
        with pytest.raises(DigestMismatchError):
            codec.open_some_packet(packet[:size])


@every_type
def test_resealing_changes_the_last_add_confirmed_and_nothing_else(
    digest_type: DigestType,
) -> None:
    codec = packet_codec(9, digest_type, b"secret")
    packets = codec.seal(5, 4, 50, [b"one", b"three"])
    entries = [codec.open_some_packet(packet) for packet in packets]
    again = [codec.open_some_packet(packet) for packet in codec.reseal(1, entries)]
    assert [entry._replace(last_add_confirmed=1) for entry in entries] == again


@checked_types
def test_the_bulk_form_gives_the_payloads_before_the_first_bad_packet(
    digest_type: DigestType,
) -> None:
    codec = packet_codec(1, digest_type, b"secret")
    packets = codec.seal(10, 9, 0, [b"a", b"b", b"c", b"d"])
    assert codec.open_payloads(encode_block(packets), 10, 9) == ([b"a", b"b", b"c", b"d"], None)
    assert codec.open_payloads(encode_block(packets), 10, 1) == ([b"a"], None)
    for at in range(len(packets[2])):
        damaged = bytearray(packets[2])
        damaged[at] ^= 1
        payloads, error = codec.open_payloads(
            encode_block([*packets[:2], bytes(damaged), packets[3]]), 10, 9
        )
        assert payloads == [b"a", b"b"]
        assert isinstance(error, DigestMismatchError)


@every_type
def test_the_bulk_form_refuses_entries_out_of_place(digest_type: DigestType) -> None:
    codec = packet_codec(1, digest_type, b"secret")
    packets = codec.seal(10, 9, 0, [b"a", b"b", b"c"])
    for block, good in (([packets[1]], []), ([packets[0], packets[2]], [b"a"])):
        payloads, error = codec.open_payloads(encode_block(block), 10, 9)
        assert payloads == good
        assert isinstance(error, DigestMismatchError)


@every_type
def test_the_bulk_form_refuses_short_packets(digest_type: DigestType) -> None:
    codec = packet_codec(1, digest_type, b"secret")
    packets = codec.seal(10, 9, 0, [b"", b""])
    payloads, error = codec.open_payloads(encode_block([packets[0], packets[1][:-1]]), 10, 9)
    assert payloads == [b""]
    assert isinstance(error, DigestMismatchError)


@every_type
def test_a_lac_packet_opens(digest_type: DigestType) -> None:
    codec = packet_codec(1, digest_type, b"secret")
    for last_add_confirmed in (-1, 0, (1 << 63) - 1):
        assert codec.open_lac(codec.seal_lac(last_add_confirmed)) == last_add_confirmed


@checked_types
def test_damage_to_a_lac_packet_is_detected(digest_type: DigestType) -> None:
    codec = packet_codec(1, digest_type, b"secret")
    packet = codec.seal_lac(5)
    for at in range(len(packet)):
        damaged = bytearray(packet)
        damaged[at] ^= 1
        with pytest.raises(DigestMismatchError, match="LAC packet of ledger 1"):
            codec.open_lac(bytes(damaged))


@every_type
def test_a_lac_packet_of_another_size_ledger_or_sense_is_refused(digest_type: DigestType) -> None:
    codec = packet_codec(1, digest_type, b"secret")
    packet = codec.seal_lac(5)
    other = packet_codec(2, digest_type, b"secret").seal_lac(5)
    for bad in (b"", packet[:-1], packet + b"x", other, codec.seal_lac(-2)):
        with pytest.raises(DigestMismatchError):
            codec.open_lac(bad)


@checked_types
def test_an_entry_packet_is_no_lac_packet(digest_type: DigestType) -> None:
    codec = packet_codec(1, digest_type, b"secret")
    (packet,) = codec.seal(0, -1, 0, [b""])
    with pytest.raises(DigestMismatchError):
        codec.open_lac(packet)
    with pytest.raises(DigestMismatchError):
        codec.open_packet(codec.seal_lac(0), 0)
