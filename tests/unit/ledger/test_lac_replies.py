import pytest

from magnetar.ledger.digest import packet_codec
from magnetar.ledger.reading.read_bound import proven_lac
from magnetar.ledger.wire_bodies import LacReply

CODEC = packet_codec(7)


def entry(entry_id: int, last_add_confirmed: int) -> bytes:
    return CODEC.seal(entry_id, last_add_confirmed, 0, [b"payload"])[0]


def damaged(packet: bytes) -> bytes:
    return packet[:20] + bytes([packet[20] ^ 1]) + packet[21:] if len(packet) > 30 else b"x"


@pytest.mark.parametrize(
    ("last", "explicit", "lac", "is_bad"),
    [
        (b"", b"", -1, False),
        (entry(5, 4), b"", 4, False),
        (entry(5, 2), CODEC.seal_lac(5), 5, False),
        (entry(9, 8), CODEC.seal_lac(5), 8, False),
        (b"", CODEC.seal_lac(0), 0, False),
        (damaged(entry(9, 8)), CODEC.seal_lac(5), 5, True),
        (entry(9, 8), damaged(CODEC.seal_lac(50)), 8, True),
        (damaged(entry(9, 8)), b"short", -1, True),
        (packet_codec(8).seal(9, 8, 0, [b""])[0], b"", -1, True),
        (b"", packet_codec(8).seal_lac(50), -1, True),
    ],
)
def test_only_a_packet_with_a_good_digest_proves_a_lac(
    last: bytes, explicit: bytes, lac: int, is_bad: bool
) -> None:
    proven = proven_lac(CODEC, LacReply(last, explicit, None))
    assert (proven.last_add_confirmed, proven.error is not None) == (lac, is_bad)
