import pytest

from magnetar.bookie.entry_logs.packet_run import check_add
from magnetar.bookie.errors import BadAddError
from magnetar.ledger.wire import PACKET_HEADER, encode_block


def packet(ledger_id: int, entry_id: int, lac: int = -1, payload: bytes = b"") -> bytes:
    return PACKET_HEADER.pack(ledger_id, entry_id, lac, 0) + bytes(4) + payload


@pytest.mark.parametrize("payloads", [[b""], [b"a", b"b"], [b"a", b"", b"ccc"]])
def test_contiguous_entries_give_a_range(payloads: list[bytes]) -> None:
    block = encode_block([packet(1, 5 + i, 4, each) for i, each in enumerate(payloads)])
    assert check_add(1, 5, block) == (range(5, 5 + len(payloads)), 4)


def test_striped_entries_give_their_ids() -> None:
    block = encode_block([packet(1, entry_id) for entry_id in (0, 3, 4)])
    assert check_add(1, 0, block) == ((0, 3, 4), -1)


def test_the_highest_lac_counts() -> None:
    block = encode_block([packet(1, 5, 1), packet(1, 6, 3), packet(1, 7, 2)])
    assert check_add(1, 5, block)[1] == 3


def test_an_entry_may_confirm_the_one_before_it() -> None:
    block = encode_block([packet(1, 5, 4), packet(1, 6, 5)])
    assert check_add(1, 5, block)[1] == 5


@pytest.mark.parametrize(
    ("ledger_id", "first", "packets"),
    [
        (-1, 0, [packet(-1, 0)]),
        (1, -1, [packet(1, -1)]),
        (1, 0, [packet(2, 0)]),
        (1, 0, [packet(1, 0), packet(2, 1)]),
        (1, 0, [packet(1, 1)]),
        (1, 5, [packet(1, 5), packet(1, 5)]),
        (1, 5, [packet(1, 5), packet(1, 4)]),
        (1, 5, [packet(1, 5, 5)]),
        (1, 5, [packet(1, 5), packet(1, 6, 6)]),
        (1, 5, [packet(1, 5, -2)]),
        (1, 5, [packet(1, 5)[:31]]),
        (1, 5, [packet(1, 5), packet(1, 6)[:31]]),
    ],
    ids=[
        "negative ledger",
        "negative entry",
        "other ledger",
        "other ledger later",
        "other first entry",
        "repeated entry",
        "descending entries",
        "lac of itself",
        "lac of itself later",
        "lac below -1",
        "short packet",
        "short packet later",
    ],
)
def test_packets_that_do_not_fit_are_refused(
    ledger_id: int, first: int, packets: list[bytes]
) -> None:
    with pytest.raises(BadAddError):
        check_add(ledger_id, first, encode_block(packets))
