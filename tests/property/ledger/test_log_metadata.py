"""The value of a log's node: round trip, and everything else is refused and never guessed at."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from magnetar.ledger.errors import InvalidLedgerMetadataError
from magnetar.ledger.log_metadata import LogLedger, LogMetadata

int64 = st.integers(0, (1 << 63) - 1)

JSON_VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-3, 1 << 70)
    | st.floats()  # json.dumps writes NaN and Infinity, which json.loads reads
    | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=4), inner),
    max_leaves=4,
)


@st.composite
def logs(draw: st.DrawFn) -> LogMetadata:
    ids = draw(st.lists(int64, max_size=5, unique=True))
    ledgers = [
        LogLedger(ledger_id, draw(int64), draw(int64), draw(st.integers(1, 1 << 50)))
        for ledger_id in ids
    ]
    is_writing = draw(st.booleans())
    if ledgers and is_writing:
        ledgers[-1] = LogLedger(ledgers[-1].ledger_id)
    properties = draw(st.dictionaries(st.text(max_size=6), st.text(max_size=6), max_size=3))
    return LogMetadata(tuple(ledgers), properties)


def refused(value: object) -> bool:
    try:
        LogMetadata.from_json(json.dumps(value).encode(), path="/logs/x")
    except InvalidLedgerMetadataError as error:
        return str(error).startswith("/logs/x")
    return False


@given(logs())
def test_json_round_trip(log: LogMetadata) -> None:
    assert LogMetadata.from_json(log.to_json(), path="/x") == log


@given(st.binary(max_size=300))
def test_arbitrary_bytes_are_refused(data: bytes) -> None:
    with pytest.raises(InvalidLedgerMetadataError):
        LogMetadata.from_json(data, path="/x")


def test_bottomless_nesting_is_refused() -> None:
    with pytest.raises(InvalidLedgerMetadataError):
        LogMetadata.from_json(b"[" * 100_000, path="/x")


@given(JSON_VALUES)
def test_arbitrary_json_is_refused(value: object) -> None:
    assert refused(value)


@given(logs(), st.data())
def test_a_changed_field_is_read_as_it_is_or_refused(log: LogMetadata, data: st.DataObject) -> None:
    """A value that is taken for another one, such as "7" for 7, would be written back changed."""
    fields = json.loads(log.to_json())
    target = fields
    if fields["ledgers"] and data.draw(st.booleans()):
        target = data.draw(st.sampled_from(fields["ledgers"]))
    name = data.draw(st.sampled_from([*sorted(target), "surprise"]))
    target[name] = data.draw(JSON_VALUES)
    if not refused(fields):
        assert name != "surprise"
        decoded = LogMetadata.from_json(json.dumps(fields).encode(), path="/x")
        again = json.loads(decoded.to_json())
        assert json.dumps(again, sort_keys=True) == json.dumps(fields, sort_keys=True)


@given(logs(), st.data())
def test_a_missing_field_is_refused(log: LogMetadata, data: st.DataObject) -> None:
    fields = json.loads(log.to_json())
    target = fields
    if fields["ledgers"] and data.draw(st.booleans()):
        target = data.draw(st.sampled_from(fields["ledgers"]))
    del target[data.draw(st.sampled_from(sorted(target)))]
    assert refused(fields)


@given(logs(), st.integers(2, 1000))
def test_a_future_format_is_refused_and_named(log: LogMetadata, version: int) -> None:
    fields = json.loads(log.to_json())
    fields["format"] = version
    with pytest.raises(InvalidLedgerMetadataError, match=str(version)):
        LogMetadata.from_json(json.dumps(fields).encode(), path="/x")


@given(logs())
def test_a_ledger_twice_or_an_open_one_before_the_last_is_refused(log: LogMetadata) -> None:
    for extra in (*log.ledgers, LogLedger(1 << 62)):
        fields = json.loads(log.with_ledgers([extra, *log.ledgers]).to_json())
        if extra.ledger_id in {each.ledger_id for each in log.ledgers}:
            assert refused(fields)
        elif log.ledgers:
            assert refused(fields), "an open ledger before the last"
