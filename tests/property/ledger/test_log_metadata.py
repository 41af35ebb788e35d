"""The value of a log's node: round trip, and everything else is refused and never guessed at."""

import json
from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from magnetar.ledger.errors import FutureLogFormatError, InvalidLedgerMetadataError
from magnetar.ledger.managed_log.log_metadata import LogLedger, LogMetadata
from magnetar.ledger.managed_log.log_objects import LedgerObject, ObjectBase, ObjectState
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


BASES = st.lists(
    st.builds(ObjectBase, st.text(max_size=3), st.text(max_size=3)), min_size=1, unique=True
)
ATTEMPTS = st.binary(min_size=16, max_size=16).map(bytes.hex)


@st.composite
def objects(draw: st.DrawFn, bases: int) -> LedgerObject:
    return LedgerObject(
        draw(st.sampled_from(ObjectState)),
        draw(ATTEMPTS),
        draw(st.integers(0, bases - 1)),
        draw(int64),
        draw(st.integers(0, (1 << 32) - 1)),
        draw(int64),
        draw(st.just("") | ATTEMPTS),
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
    bases = draw(st.just([]) | BASES)
    if bases:
        ledgers = [
            replace(ledger, object=draw(st.none() | objects(len(bases))))
            if ledger.is_closed
            else ledger
            for ledger in ledgers
        ]
    properties = draw(st.dictionaries(st.text(max_size=6), st.text(max_size=6), max_size=3))
    log = LogMetadata(
        tuple(ledgers),
        properties,
        removed_through=draw(st.just(-1) | int64),
        creation_token=draw(int64),
        object_bases=tuple(bases),
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
    required = set(target) - {"removed_through", "terminated", "token", "object"}
    del target[data.draw(st.sampled_from(sorted(required)))]
    assert refused(fields)


@given(logs(), st.integers(3, 1000))
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


ONE, TWO = "01" * 16, "02" * 16


def copied(log: LogMetadata, ledger_id: int) -> LogMetadata:
    begun = log.with_copy_begun(ledger_id, ONE, ObjectBase("s", "p/"))
    return begun.with_copied(ledger_id, ONE, size_bytes=10, check=11, at_ms=12)


def object_of(log: LogMetadata) -> LedgerObject | None:
    return log.ledgers[0].object


CLOSED = LogMetadata((LogLedger(7, 5, 50, 1), LogLedger(8)))


def test_a_ledger_goes_to_the_object_store_step_by_step() -> None:
    begun = CLOSED.with_copy_begun(7, ONE, ObjectBase("s", "p/"))
    assert object_of(begun) == LedgerObject(ObjectState.COPYING, ONE, 0)
    assert begun.object_bases == (ObjectBase("s", "p/"),)
    done = copied(CLOSED, 7)
    assert object_of(done) == LedgerObject(ObjectState.COPIED, ONE, 0, 10, 11, 12)
    only = done.with_object_only(7, ONE)
    assert object_of(only) == LedgerObject(ObjectState.ONLY, ONE, 0, 10, 11, 12)


def test_a_step_of_another_attempt_changes_nothing() -> None:
    begun = CLOSED.with_copy_begun(7, ONE, ObjectBase("s", "p/"))
    assert begun.with_copied(7, TWO, size_bytes=1, check=1, at_ms=1) == begun
    assert begun.with_object_only(7, ONE) == begun
    done = copied(CLOSED, 7)
    assert done.with_copy_begun(7, TWO, ObjectBase("t", "")) == done
    assert done.with_object_only(7, TWO) == done
    assert done.with_copy_replaced(7, TWO, ONE) == done
    assert done.with_copied(7, TWO, size_bytes=1, check=1, at_ms=1) == done


def test_an_open_ledger_and_one_that_is_gone_get_no_object() -> None:
    for ledger_id in (8, 9):
        assert CLOSED.with_copy_begun(ledger_id, ONE, ObjectBase("s", "")) == CLOSED


def test_an_object_keeps_its_base_when_the_next_ones_go_elsewhere() -> None:
    log = LogMetadata((LogLedger(7, 5, 50, 1), LogLedger(8, 5, 50, 2)))
    log = copied(log, 7).with_copy_begun(8, TWO, ObjectBase("t", "q/"))
    assert log.object_bases == (ObjectBase("s", "p/"), ObjectBase("t", "q/"))
    first, second = (ledger.object for ledger in log.ledgers)
    assert first is not None
    assert second is not None
    assert (first.base, second.base) == (0, 1)


def test_a_damaged_object_is_replaced_by_the_attempt_that_was_named_for_that() -> None:
    named = copied(CLOSED, 7).with_copy_replaced(7, ONE, TWO)
    assert object_of(named) == LedgerObject(ObjectState.COPIED, ONE, 0, 10, 11, 12, TWO)
    done = named.with_copied(7, TWO, size_bytes=20, check=21, at_ms=22)
    assert object_of(done) == LedgerObject(ObjectState.COPIED, TWO, 0, 20, 21, 22)


@given(logs())
def test_logs_that_never_went_to_an_object_store_are_read_by_older_releases(
    log: LogMetadata,
) -> None:
    assert json.loads(log.to_json())["format"] == (2 if log.object_bases else 1)


@given(logs(), st.integers(0, 1 << 62))
def test_changes_applied_twice_are_changes_applied_once(log: LogMetadata, ledger_id: int) -> None:
    closed = LogLedger(ledger_id, 5, 50, 1)
    changes: list[Callable[[LogMetadata], LogMetadata]] = [
        lambda each: each.with_next(ledger_id),
        lambda each: each.with_closed(closed),
        lambda each: each.with_closed(LogLedger(ledger_id)),
        lambda each: each.without(ledger_id),
        lambda each: each.ended(),
        lambda each: each.with_copy_begun(ledger_id, ONE, ObjectBase("s", "p/")),
        lambda each: each.with_copied(ledger_id, ONE, size_bytes=1, check=2, at_ms=3),
        lambda each: each.with_copy_replaced(ledger_id, ONE, TWO),
        lambda each: each.with_copied(ledger_id, TWO, size_bytes=4, check=5, at_ms=6),
        lambda each: each.with_object_only(ledger_id, ONE),
    ]
    for change in changes:
        once = change(log)
        assert change(once) == once
