"""The body of a marker of single acknowledgements: bounds, and what is no such body."""

import pytest

from magnetar.broker.base.errors import BrokerMetadataError
from magnetar.broker.features.replication.acks import (
    ACKS_BYTES_MAX,
    RANGES_MAX,
    Acks,
    OriginAcks,
    decode_acks,
    encode_acks,
)
from magnetar.broker.features.replication.source_marks import Source
from magnetar.cursors import AckRange, BatchAck

EAST = Source("east", 1 << 61)


def acks(*ranges: AckRange, batches: tuple[BatchAck, ...] = ()) -> Acks:
    return Acks("s", {EAST: OriginAcks(ranges, batches)})


def test_a_body_has_the_bytes_that_its_page_says() -> None:
    told = Acks(
        "s",
        {Source("e", 5): OriginAcks((AckRange(300, 2, 4),), (BatchAck(7, 1, 0b101),))},
        is_whole=True,
    )
    assert encode_acks(told) == bytes.fromhex("0101 0173 01 0165 05 01 ac02 02 02 01 07 01 01 05")
    assert decode_acks(encode_acks(told)) == told
    assert told.entries == 4


@pytest.mark.parametrize("count", [RANGES_MAX, RANGES_MAX + 1])
def test_a_marker_names_so_many_ranges_and_no_more(count: int) -> None:
    told = acks(*(AckRange(1, 2 * at, 2 * at) for at in range(count)))
    if count == RANGES_MAX:
        assert decode_acks(encode_acks(told)) == told
    else:
        with pytest.raises(BrokerMetadataError, match="at most 2000"):
            decode_acks(encode_acks(told))


def test_a_body_has_a_bound() -> None:
    with pytest.raises(BrokerMetadataError, match="the limit is 65536"):
        decode_acks(bytes(ACKS_BYTES_MAX + 1))


GOOD = encode_acks(acks(AckRange(1, 2, 3), batches=(BatchAck(1, 9, 6),)))


@pytest.mark.parametrize(
    "body",
    [
        b"",
        *(GOOD[:size] for size in range(1, len(GOOD))),
        GOOD + b"\0",
        b"\2" + GOOD[1:],
        GOOD[:-1] + b"\0",
        GOOD[:3] + b"\xff" + GOOD[4:],
        b"\1\0\1s" + b"\xff" * 12,
    ],
)
def test_what_is_no_body_is_refused(body: bytes) -> None:
    with pytest.raises(BrokerMetadataError):
        decode_acks(body)
