"""Entry packets: what is sealed opens, and nothing else does."""

import pytest

from magnetar.ledger.digest import open_packet, open_payloads, open_some_packet, reseal, seal
from magnetar.ledger.errors import DigestMismatchError
from magnetar.ledger.wire import encode_block


def test_a_sealed_entry_opens_with_its_header() -> None:
    first, second = seal(7, 3, 2, 100, [b"abc", b"defgh"])
    assert open_packet(first, ledger_id=7, entry_id=3) == (3, 2, 103, b"abc")
    assert open_packet(second, ledger_id=7, entry_id=4) == (4, 2, 108, b"defgh")


def test_the_layout_is_the_documented_one() -> None:
    (packet,) = seal(1, 2, 1, 0, [b"x"])
    assert packet[:32].hex() == ("0000000000000001000000000000000200000000000000010000000000000001")
    assert packet[36:] == b"x"


def test_i20_flipping_any_bit_is_detected() -> None:
    (packet,) = seal(1, 0, -1, 0, [b"payload"])
    for at in range(len(packet)):
        for bit in range(8):
            damaged = bytearray(packet)
            damaged[at] ^= 1 << bit
            with pytest.raises(DigestMismatchError):
                open_packet(bytes(damaged), ledger_id=1, entry_id=0)


@pytest.mark.parametrize(("ledger_id", "entry_id"), [(2, 0), (1, 1)])
def test_another_entry_than_the_one_asked_for_is_refused(ledger_id: int, entry_id: int) -> None:
    (packet,) = seal(1, 0, -1, 0, [b"payload"])
    with pytest.raises(DigestMismatchError, match="asked for entry"):
        open_packet(packet, ledger_id=ledger_id, entry_id=entry_id)


def test_truncated_packets_are_refused() -> None:
    (packet,) = seal(1, 0, -1, 0, [b""])
    for size in range(len(packet)):
        with pytest.raises(DigestMismatchError):
            open_packet(packet[:size], ledger_id=1, entry_id=0)


def test_resealing_changes_the_last_add_confirmed_and_nothing_else() -> None:
    packets = seal(9, 5, 4, 50, [b"one", b"three"])
    entries = [open_some_packet(packet, ledger_id=9) for packet in packets]
    again = [open_some_packet(packet, ledger_id=9) for packet in reseal(9, 1, entries)]
    assert [entry._replace(last_add_confirmed=1) for entry in entries] == again


def test_the_bulk_form_gives_the_payloads_before_the_first_bad_packet() -> None:
    packets = seal(1, 10, 9, 0, [b"a", b"b", b"c", b"d"])
    opened = {"ledger_id": 1, "first_entry_id": 10, "entries_max": 9}
    assert open_payloads(encode_block(packets), **opened) == ([b"a", b"b", b"c", b"d"], None)
    for at in range(len(packets[2])):
        damaged = bytearray(packets[2])
        damaged[at] ^= 1
        payloads, error = open_payloads(
            encode_block([*packets[:2], bytes(damaged), packets[3]]), **opened
        )
        assert payloads == [b"a", b"b"]
        assert isinstance(error, DigestMismatchError)


def test_the_bulk_form_refuses_entries_out_of_place() -> None:
    packets = seal(1, 10, 9, 0, [b"a", b"b"])
    payloads, error = open_payloads(
        encode_block([packets[1]]), ledger_id=1, first_entry_id=10, entries_max=1
    )
    assert payloads == []
    assert isinstance(error, DigestMismatchError)
