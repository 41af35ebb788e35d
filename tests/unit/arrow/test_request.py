"""What is wrong with an argument is said in one line that names it, before a server is asked."""

from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest

from magnetar.arrow.change_token import Reached, encode_token
from magnetar.arrow.errors import OptionError
from magnetar.arrow.request import (
    MEMORY_BYTES,
    MEMORY_BYTES_PER_WORKER_MIN,
    TABLE_BYTES,
    WORKERS_MAX,
    Request,
    checked,
    checked_changes,
    checked_table,
)
from magnetar.sdk.message_id import MessageId

TOPIC = "persistent://public/default/t"


def _request(topic: Any = "t", **arguments: Any) -> Request:
    where = {"service_url": "pulsar://h:1", "admin_url": "http://h:2"}
    return checked(topic, {**where, **arguments})  # type: ignore[typeddict-item]


def test_a_read_without_further_arguments_is_of_everything() -> None:
    request = _request()
    assert [str(each) for each in request.source.selection.topics] == [TOPIC]
    assert (request.source.starting.word, request.source.ending.word) == ("earliest", "latest")
    assert (request.columns, request.rows.names, request.decodes) == (None, (), True)
    assert (request.workers, request.uses_processes) == (1, False)
    assert not request.source.reads_bookies
    assert _request(metadata_url="zk://z:1/m").source.reads_bookies


def test_several_topics_are_a_list() -> None:
    assert len(_request(["a", "b"]).source.selection.topics) == 2


def test_a_read_may_begin_behind_what_a_subscription_has_acknowledged() -> None:
    options = {"startingSubscription": "s"}
    assert _request(options=options).source.starting_subscription == "s"
    with pytest.raises(OptionError, match="together with startingSubscription"):
        _request(start="latest", options=options)


def test_bytes_whatever_the_schemas_are_have_an_argument_of_their_own() -> None:
    with pytest.raises(OptionError, match="is an argument of its own: decode"):
        _request(options={"allowDifferentTopicSchemas": "true"})


@pytest.mark.parametrize(
    ("place", "expected"),
    [
        ("12:3", MessageId(12, 3)),
        (MessageId(12, 3), MessageId(12, 3)),
        (MessageId(12, 3, batch_index=4), MessageId(12, 3, batch_index=4)),
        (MessageId(12, 3).to_bytes(), MessageId(12, 3)),
        ({"t": "12:3"}, MessageId(12, 3)),
        ({TOPIC: MessageId(12, 3)}, MessageId(12, 3)),
    ],
)
def test_a_place_is_a_message_id_in_any_form(place: Any, expected: MessageId) -> None:
    for found in (_request(start=place).source.starting, _request(end=place).source.ending):
        at = found.of(TOPIC)
        assert at is not None
        assert (at.ledger_id, at.entry_id, at.batch_index) == (
            expected.ledger_id, expected.entry_id, expected.batch_index,
        )  # fmt: skip


@pytest.mark.parametrize(
    "place",
    [
        1_767_225_600_000,
        datetime(2026, 1, 1),
        datetime(2026, 1, 1, tzinfo=UTC),
        datetime(2026, 1, 1, 2, tzinfo=timezone(timedelta(hours=2))),
    ],
)
def test_a_place_is_a_time_in_any_form(place: Any) -> None:
    request = _request(start=place, end=place)
    assert request.source.starting_ms == request.source.ending_ms == 1_767_225_600_000
    assert request.rows.from_ms == request.rows.through_ms == 1_767_225_600_000


def test_keys_are_text_or_bytes() -> None:
    assert _request(keys=["a", b"b"]).rows.keys == frozenset({b"a", b"b"})
    assert _request(keys=[]).rows.keys == frozenset()


def test_memory_is_shared_out() -> None:
    request = _request(workers=2, memory_bytes=256 << 20)
    assert request.queue_bytes_max == 128 << 20
    assert request.source.settings.decompressed_bytes_max == 32 << 20
    assert request.source.settings.chunked_bytes_max == 32 << 20
    assert request.source.slice_bytes == 16 << 20
    assert _request(options={"sliceBytes": "5000000"}).source.slice_bytes == 5_000_000


def test_memory_has_a_least_for_each_worker() -> None:
    least = 4 * MEMORY_BYTES_PER_WORKER_MIN
    assert _request(workers=4, memory_bytes=least).memory_bytes == least
    with pytest.raises(OptionError, match=r"memory_bytes: .* too little for 4 workers"):
        _request(workers=4, memory_bytes=least - 1)


@pytest.mark.parametrize("workers", [1, WORKERS_MAX])
def test_workers_are_bounded(workers: int) -> None:
    memory_bytes = max(MEMORY_BYTES, workers * MEMORY_BYTES_PER_WORKER_MIN)
    assert _request(workers=workers, memory_bytes=memory_bytes).workers == workers
    with pytest.raises(OptionError, match="option workers"):
        _request(workers=workers - 1 if workers == 1 else workers + 1, memory_bytes=1 << 60)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"service_url": ""}, "option service_url: it is required"),
        ({"service_url": "http://h"}, "option service_url: "),
        ({"admin_url": ""}, "option admin_url: it is required"),
        ({"metadata_url": "h:1"}, "option metadata_url: 'h:1' is not of the form"),
        ({"authentication": "x"}, "option authentication: it is none, tls, token"),
        ({"start": "1"}, "option start: .*'1' is not a message id"),
        ({"start": {"t": 5}}, "option start: "),
        ({"end": "earliest"}, "option end: "),
        ({"start": 5, "end": 4}, "option end: it is before"),
        ({"mode": "x"}, "option mode: 'x' is not allowed; it is one of FAILFAST"),
        ({"columns": "a"}, "option columns: it is a list"),
        ({"columns": []}, "option columns: it is a list"),
        ({"keys": "a"}, "option keys: it is a collection"),
        ({"options": {"startingTime": "5"}}, "option options: .* an argument of its own: start"),
        ({"options": {"TOPIC": "x"}}, "option options: .* an argument of its own: topic"),
        ({"options": {"sliceByte": "x"}}, "option slicebyte: .*did you mean sliceBytes"),
        ({"column": ["a"]}, "option column: .*did you mean columns"),
        ({"objects": "file:///x"}, "option service_url: it cannot be given together with objects"),
    ],
)
def test_a_wrong_argument_is_named(arguments: dict[str, Any], said: str) -> None:
    with pytest.raises(OptionError, match=said):
        _request(**arguments)


@pytest.mark.parametrize("topic", ["", "a/b", "non-persistent://public/default/t", []])
def test_a_topic_that_cannot_be_read_is_named(topic: Any) -> None:
    with pytest.raises(OptionError, match="option topic"):
        _request(topic)


def test_one_id_is_not_for_several_topics() -> None:
    with pytest.raises(OptionError, match="option start: with several topics"):
        _request(["a", "b"], start="1:2")


def test_places_are_given_for_segments_and_for_whole_scalable_topics() -> None:
    topic, segment = "topic://public/default/t", "segment://public/default/t/0000-ffff-0"
    source = _request(topic, start={segment: "1:2"}, end={topic: "latest"}).source
    assert source.starting.of(segment) == MessageId(1, 2)
    assert source.ending.of(topic) == MessageId.LATEST
    with pytest.raises(OptionError, match=r"option start: .*give message ids for its segments"):
        _request(topic, start="1:2")


WHERE: Any = {"service_url": "pulsar://h:1", "admin_url": "http://h:2"}


def test_tables_of_scalable_topics_are_refused() -> None:
    for checked_as in (checked_table, checked_changes):
        with pytest.raises(OptionError, match=r"option topic: tables .* Use read or scan"):
            checked_as("topic://public/default/t", WHERE)


def test_a_table_is_of_the_whole_topic() -> None:
    request, table_bytes = checked_table("t", WHERE)
    assert (request.source.starting.word, request.source.ending.word) == ("earliest", "latest")
    assert table_bytes == TABLE_BYTES
    smaller: Any = {**WHERE, "table_bytes": 1, "keys": ["a"]}
    assert checked_table("t", smaller)[1] == 1


def test_changes_go_on_from_a_token() -> None:
    reached = {TOPIC: Reached(3, 4)}
    for token, expected in ((encode_token(reached), reached), (None, {})):
        arguments: Any = {**WHERE, "after": token}
        assert checked_changes("t", arguments)[1] == expected


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"start": "1:2"}, "option start: there is no argument"),
        ({"after": "x"}, "option after: there is no argument"),
        ({"objects": "file:///x"}, "option objects: there is no argument"),
        ({"table_byte": 1}, "did you mean table_bytes"),
        ({"table_bytes": 0}, "option table_bytes: 0 is not above 0"),
        ({"mode": "DROPMALFORMED"}, "option mode: DROPMALFORMED would make the value before"),
        ({"workers": 0}, "option workers"),
    ],
)
def test_what_a_table_does_not_take_is_said(arguments: Any, said: str) -> None:
    given: Any = {**WHERE, **arguments}
    with pytest.raises(OptionError, match=said):
        checked_table("t", given)


def test_a_feed_says_what_it_does_not_take() -> None:
    arguments: Any = {**WHERE, "table_bytes": 1}
    with pytest.raises(OptionError, match="option table_bytes: there is no argument"):
        checked_changes("t", arguments)
