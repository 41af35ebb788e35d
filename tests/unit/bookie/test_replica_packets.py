"""Packets of another bookie that are copies of an entry."""

from dataclasses import replace

import pytest

from magnetar.bookie.integrity.peers import check_packet
from magnetar.ledger.digest import codec_for, packet_codec
from magnetar.ledger.errors import DigestMismatchError
from magnetar.ledger.ledger_metadata import DigestType, Fragment, LedgerMetadata, LedgerState

OPEN = LedgerMetadata(
    ledger_id=7,
    ensemble_size=3,
    write_quorum=3,
    ack_quorum=2,
    state=LedgerState.OPEN,
    last_entry_id=-1,
    length=0,
    ensembles=(Fragment(0, ("b1", "b2", "b3")),),
    digest_type=DigestType.HMAC,
    password=b"secret",
    created_ms=0,
    creation_token=1,
)
CLOSED = replace(OPEN, state=LedgerState.CLOSED, last_entry_id=4, length=50)


def packet(
    entry_id: int,
    *,
    lac: int | None = None,
    length_before: int | None = None,
    password: bytes = b"secret",
    ledger_id: int = 7,
) -> bytes:
    codec = packet_codec(ledger_id, DigestType.HMAC, password)
    return codec.seal(
        entry_id,
        entry_id - 1 if lac is None else lac,
        10 * entry_id if length_before is None else length_before,
        [b"0123456789"],
    )[0]


def check(data: bytes, entry_id: int, metadata: LedgerMetadata) -> None:
    check_packet(data, entry_id, metadata, codec_for(metadata))


@pytest.mark.parametrize("metadata", [OPEN, CLOSED])
def test_what_a_writer_or_a_recovery_sealed_is_a_copy(metadata: LedgerMetadata) -> None:
    for entry_id in range(5):
        check(packet(entry_id), entry_id, metadata)
        check(packet(entry_id, lac=-1), entry_id, metadata)  # sealed again, with another LAC


@pytest.mark.parametrize(
    "data",
    [
        packet(2)[:-1],
        packet(2)[:20],
        b"",
        packet(3),
        packet(2, ledger_id=8),
        packet(2, password=b"another"),
        packet(2, lac=2),
        packet(2, lac=-2),
        packet(2, length_before=-5),
    ],
    ids=["cut", "no header", "empty", "entry", "ledger", "password", "lac", "lac -2", "length"],
)
@pytest.mark.parametrize("metadata", [OPEN, CLOSED])
def test_what_cannot_be_the_entry_is_none(metadata: LedgerMetadata, data: bytes) -> None:
    with pytest.raises(DigestMismatchError):
        check(data, 2, metadata)


def test_lengths_must_fit_the_end_of_a_closed_ledger() -> None:
    check(packet(2, length_before=990), 2, OPEN)
    with pytest.raises(DigestMismatchError):
        check(packet(2, length_before=990), 2, CLOSED)
    with pytest.raises(DigestMismatchError, match="length 49"):
        check(packet(4, length_before=39), 4, CLOSED)
