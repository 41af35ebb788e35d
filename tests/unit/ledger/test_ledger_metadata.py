"""Rule 2.5: what ledger metadata may not be; and the bytes of the stored form."""

from dataclasses import replace

import pytest

from magnetar.ledger.errors import FutureMetadataVersionError, InvalidLedgerMetadataError
from magnetar.ledger.ledger_metadata import (
    LEDGER_ID_MAX,
    Fragment,
    LedgerMetadata,
    LedgerState,
)

OPEN = LedgerMetadata(
    ledger_id=17,
    ensemble_size=3,
    write_quorum=2,
    ack_quorum=2,
    state=LedgerState.OPEN,
    last_entry_id=-1,
    length=0,
    ensembles=(Fragment(0, ("b1", "b2", "b3")), Fragment(10, ("b1", "b4", "b3"))),
    password=b"\xff\xfe",
    created_ms=1_700_000_000_000,
    custom_metadata={"topic": "t"},
    creation_token=42,
)
CLOSED = replace(OPEN, state=LedgerState.CLOSED, last_entry_id=12, length=130)

RECORDED = (
    b'{"ledger_id":17,"ensemble_size":3,"write_quorum":2,"ack_quorum":2,"state":"CLOSED",'
    b'"last_entry_id":12,"length":130,'
    b'"ensembles":[[0,["b1","b2","b3"]],[10,["b1","b4","b3"]]],"digest_type":"CRC32C",'
    b'"password":"__4=","created_ms":1700000000000,"custom_metadata":{"topic":"t"},'
    b'"creation_token":42,"format_version":1}'
)


def test_the_stored_form_is_the_documented_one() -> None:
    assert CLOSED.to_json() == RECORDED
    assert LedgerMetadata.from_json(RECORDED) == CLOSED


@pytest.mark.parametrize(
    "ensembles",
    [
        (),
        (Fragment(1, ("b1", "b2", "b3")),),
        (Fragment(0, ("b1", "b2")),),
        (Fragment(0, ("b1", "b2", "b3", "b4")),),
        (Fragment(0, ("b1", "b2", "b2")),),
        (Fragment(0, ("b1", "b2", "b 3")),),
        (Fragment(0, ("b1", "b2", "")),),
        (Fragment(0, ("b1", "b2", "b3")), Fragment(0, ("b1", "b2", "b3"))),
        (
            Fragment(0, ("b1", "b2", "b3")),
            Fragment(9, ("b1", "b2", "b3")),
            Fragment(4, ("b1", "b2", "b3")),
        ),
    ],
)
def test_bad_fragments_are_refused(ensembles: tuple[Fragment, ...]) -> None:
    with pytest.raises(InvalidLedgerMetadataError):
        replace(OPEN, ensembles=ensembles)


@pytest.mark.parametrize(
    ("ensemble_size", "write_quorum", "ack_quorum"), [(3, 4, 2), (3, 2, 3), (3, 2, 0), (3, 0, 0)]
)
def test_bad_quorums_are_refused(ensemble_size: int, write_quorum: int, ack_quorum: int) -> None:
    with pytest.raises(InvalidLedgerMetadataError):
        replace(OPEN, ensemble_size=ensemble_size, write_quorum=write_quorum, ack_quorum=ack_quorum)


@pytest.mark.parametrize(("last_entry_id", "length"), [(8, 10), (-1, 0), (12, -1), (1 << 63, 1)])
def test_a_ledger_cannot_end_there(last_entry_id: int, length: int) -> None:
    with pytest.raises(InvalidLedgerMetadataError):
        OPEN.closed(last_entry_id=last_entry_id, length=length)


def test_a_ledger_may_end_right_before_its_last_fragment() -> None:
    assert OPEN.closed(last_entry_id=9, length=10).last_entry_id == 9


def test_an_empty_ledger_ends_at_minus_one_with_no_bytes() -> None:
    empty = replace(OPEN, ensembles=OPEN.ensembles[:1])
    assert empty.closed(last_entry_id=-1, length=0).state is LedgerState.CLOSED
    with pytest.raises(InvalidLedgerMetadataError):
        empty.closed(last_entry_id=-1, length=1)


@pytest.mark.parametrize("state", [LedgerState.OPEN, LedgerState.IN_RECOVERY])
def test_only_a_closed_ledger_has_an_end(state: LedgerState) -> None:
    with pytest.raises(InvalidLedgerMetadataError):
        replace(CLOSED, state=state)


def test_numbers_out_of_range_are_refused() -> None:
    with pytest.raises(InvalidLedgerMetadataError):
        replace(OPEN, ledger_id=-1)
    with pytest.raises(InvalidLedgerMetadataError):
        replace(OPEN, ledger_id=LEDGER_ID_MAX + 1)
    with pytest.raises(InvalidLedgerMetadataError):
        replace(OPEN, created_ms=-1)
    with pytest.raises(InvalidLedgerMetadataError):
        replace(OPEN, creation_token=-1)
    with pytest.raises(InvalidLedgerMetadataError):
        replace(OPEN, format_version=2)


@pytest.mark.parametrize("version", [2, 3, 1 << 40])
@pytest.mark.parametrize("other", [b"", b'"fragments":{"0":[]},', b'"state":"SEALED",'])
def test_a_newer_format_says_to_upgrade_whatever_else_is_in_it(version: int, other: bytes) -> None:
    value = RECORDED.replace(b'"format_version":1', b'"format_version":%d' % version)
    value = value.replace(b"{", b"{" + other, 1)
    with pytest.raises(
        FutureMetadataVersionError, match=f"^/x is .* version {version}; .*reads version 1: upgrade"
    ):
        LedgerMetadata.from_json(value, where="/x")


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (b"", r"it is no JSON \(JSONDecodeError\)"),
        (b"\xff\xfe\xfd", "it is no JSON"),
        (b"[" * 100_000, r"it is no JSON \(RecursionError\)"),
        (b"[]", "it is no JSON object"),
        (b"{}", "ack_quorum, created_ms, creation_token, .*: missing"),
        (
            RECORDED.replace(b'"length":130', b'"length":"130"'),
            "length: Input should be a valid int",
        ),
        (RECORDED.replace(b'"CRC32C"', b'"BLAKE3"'), "digest_type: Input should be"),
        (RECORDED.replace(b'"format_version":1', b'"format_version":0'), "format version 0"),
        (RECORDED.replace(b'"format_version":1', b'"format_version":true'), "format_version"),
        (RECORDED.replace(b"[10,", b"[0,"), "fragment starts must increase"),
        (RECORDED.replace(b"{", b'{"surprise":1,', 1), "surprise: Unexpected"),
    ],
)
def test_a_corrupt_value_says_what_is_wrong_and_what_to_do(value: bytes, reason: str) -> None:
    with pytest.raises(
        InvalidLedgerMetadataError,
        match=f"^/x is no ledger metadata: .*{reason}.*Nothing was changed: bring the value back",
    ) as refused:
        LedgerMetadata.from_json(value, where="/x")
    assert not isinstance(refused.value, FutureMetadataVersionError)
    assert "__4=" not in str(refused.value), "the password"
