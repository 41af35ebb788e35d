"""The value of a log's node: round trip, and everything else is refused and never guessed at."""

import json
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from magnetar.ledger.errors import FutureLogFormatError, InvalidLedgerMetadataError
from magnetar.ledger.managed_log.log_metadata import LogLedger, LogMetadata
from magnetar.ledger.position import Position

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
    if is_writing:
        for at in range(-draw(st.integers(1, 2)), 0):
            if len(ledgers) >= -at:
                ledgers[at] = LogLedger(ledgers[at].ledger_id)
    properties = draw(st.dictionaries(st.text(max_size=6), st.text(max_size=6), max_size=3))
    log = LogMetadata(
        tuple(ledgers),
        properties,
        removed_through=draw(st.just(-1) | int64),
        creation_token=draw(int64),
    )
    return log.ended() if not is_writing and draw(st.booleans()) else log


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
    required = set(target) - {"removed_through", "terminated", "token"}
    del target[data.draw(st.sampled_from(sorted(required)))]
    assert refused(fields)


@given(logs(), st.integers(2, 1000))
def test_a_future_format_is_refused_and_named(log: LogMetadata, version: int) -> None:
    fields = json.loads(log.to_json())
    fields["format"] = version
    with pytest.raises(FutureLogFormatError, match=f"format {version}.* upgrade it"):
        LogMetadata.from_json(json.dumps(fields).encode(), path="/x")


@given(logs())
def test_a_ledger_twice_or_an_open_one_before_the_last_two_is_refused(log: LogMetadata) -> None:
    extra = LogLedger(1 << 62)
    for twice in log.ledgers:
        assert refused(json.loads(log.with_ledgers([twice, *log.ledgers]).to_json()))
    listed = [extra, *log.ledgers]
    may_be = len(listed) == 1 or (len(listed) == 2 and not listed[1].is_closed)
    may_be = may_be and log.terminated is None
    assert refused(json.loads(log.with_ledgers(listed).to_json())) != may_be


@given(logs())
def test_a_terminated_log_has_no_open_ledger_and_ends_where_it_says(log: LogMetadata) -> None:
    fields = json.loads(log.ended().to_json())
    assert refused(fields) == any(not ledger.is_closed for ledger in log.ledgers)
    if log.last_listed.entry_id >= 0:
        fields["terminated"] = [-1, -1]
        assert refused(fields)


@given(logs(), st.integers(0, 1 << 63), st.integers(-1, 1 << 63))
def test_a_shrunk_log_has_lost_nothing_from_the_position_on(
    log: LogMetadata, ledger_id: int, entry_id: int
) -> None:
    before = Position(ledger_id, entry_id)
    shrunk = log.shrunk(before)
    removed = log.ledgers[: len(log.ledgers) - len(shrunk.ledgers)]
    assert shrunk.ledgers == log.ledgers[len(removed) :]
    assert len(shrunk.ledgers) >= min(1, len(log.ledgers))
    for ledger in removed:
        assert ledger.is_closed
        assert (ledger.ledger_id, ledger.entries - 1) < before
    assert shrunk.shrunk(before) == shrunk
    assert LogMetadata.from_json(shrunk.to_json(), path="/x") == shrunk


@given(logs(), st.integers(0, 1 << 62))
def test_changes_applied_twice_are_changes_applied_once(log: LogMetadata, ledger_id: int) -> None:
    closed = LogLedger(ledger_id, 5, 50, 1)
    changes: list[Callable[[LogMetadata], LogMetadata]] = [
        lambda each: each.with_next(ledger_id),
        lambda each: each.with_closed(closed),
        lambda each: each.with_closed(LogLedger(ledger_id)),
        lambda each: each.without(ledger_id),
        lambda each: each.ended(),
    ]
    for change in changes:
        once = change(log)
        assert change(once) == once
