"""Compacted topics as tables: the newest value of each key, whole and as a change feed."""

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pulsar
import pyarrow as pa
import pytest

from magnetar.arrow import (
    Changes,
    DataLossError,
    MemoryLimitError,
    OptionError,
    changes,
    read,
    table,
    tables,
)
from magnetar.sdk import Client
from magnetar.sdk.schemas import AvroSchema
from tests.http_calls import Answer, call, topic_path
from tests.integration.arrow.support import at_bookies, keep_topics, through_brokers
from tests.integration.pulsar_client.support import connect, publish_to
from tests.standalone import Standalone
from tests.waiting import wait_until

Message = tuple[str | None, bytes]

BATCHED: dict[str, Any] = {"batching_max_messages": 7, "batching_max_publish_delay_ms": 10_000}
SINGLE: dict[str, Any] = {"batching_enabled": False}

SMALL_SLICES = {"sliceBytes": "2000"}
LEDGER_ENTRIES = 20

_numbers = itertools.count()


@pytest.fixture(scope="module")
def compacting(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Standalone]:
    """Topics have small ledgers, which are trimmed as soon as nothing needs them."""
    settings = {
        "LEDGER_ENTRIES_MAX": str(LEDGER_ENTRIES),
        "LEDGER_AGE_MIN_S": "0",
        "UNSUBSCRIBED_RETENTION": "false",
        "RETENTION_CHECK_INTERVAL_S": "0.2",
    }
    with Standalone(tmp_path_factory.mktemp("tables") / "data", settings=settings) as started:
        keep_topics(started)
        yield started
        started.assert_log_clean()


@pytest.fixture
def client(compacting: Standalone) -> Iterator[pulsar.Client]:
    connection = connect(compacting.url, log_path=compacting.log_path.with_suffix(".client"))
    yield connection
    connection.close()


class Topic:
    """A topic of its own for each test, by its HTTP interface. It is compacted while it is empty:
    from then on it keeps what was not compacted, without a subscription."""

    def __init__(self, server: Standalone) -> None:
        self.name = f"persistent://public/default/table-{next(_numbers)}"
        self._server = server
        self.call("PUT", "", expect=204)
        self.compact()

    def call(self, method: str, action: str, body: object = None, *, expect: int) -> Answer:
        return call(self._server, method, topic_path(self.name) + action, body, expect=expect)

    def compact(self) -> None:
        self.call("PUT", "/compaction", expect=204)
        wait_until(lambda: self._status() != "RUNNING", "the end of the compaction")
        assert self._status() == "SUCCESS"

    def _status(self) -> str:
        return str(self.call("GET", "/compaction", expect=200).json["status"])

    def _ledgers(self) -> set[int]:
        found = self.call("GET", "/internalStats", expect=200).json["ledgers"]
        return {each["ledgerId"] for each in found}

    def compact_and_trim(self, client: pulsar.Client) -> None:
        """Compact, until only the compacted ledger has what was published before."""
        before = self._ledgers()
        self.call("PUT", "/unload", expect=204)
        # A ledger is trimmed when later ones have entries; one without a key is no row of a table.
        publish_to(client, self.name, [(None, b"no key")])
        self.compact()
        wait_until(lambda: not before & self._ledgers(), "trimmed ledgers")


@pytest.fixture
def topic(compacting: Standalone) -> Topic:
    return Topic(compacting)


def newest(messages: Sequence[Message]) -> dict[bytes, bytes]:
    """What is left of each key."""
    last = {key: value for key, value in messages if key is not None}
    return {key.encode(): value for key, value in last.items() if value}


def history(rounds: int, keys: int = 10) -> list[Message]:
    """Every key several times, one that is removed, one that is removed and comes back."""
    messages: list[Message] = []
    for at in range(rounds):
        messages += [(f"key {key}", b"%d of round %d" % (key, at)) for key in range(keys)]
        messages += [(None, b"no key"), ("removed", b"there"), ("back", b"%d" % at)]
        messages += [("removed", b""), ("back", b"") if at < rounds - 1 else ("late", b"late")]
    return messages


def values_of(found: pa.Table) -> dict[bytes, bytes]:
    rows = [(each["__key"], each["value"]) for each in found.to_pylist()]
    assert len({key for key, _ in rows}) == len(rows)
    return dict(rows)


WAYS: list[tuple[Callable[[Any], dict[str, Any]], dict[str, Any]]] = [
    (at_bookies, {}),
    (at_bookies, {"workers": 2, "options": SMALL_SLICES}),
    (at_bookies, {"workers": 2, "processes": True, "options": SMALL_SLICES}),
]
WAY_NAMES = ["from bookies", "by threads", "by processes"]


@pytest.mark.parametrize("settings", [SINGLE, BATCHED], ids=["single", "batched"])
def test_a_table_is_the_newest_value_of_each_key_before_and_after_compactions(
    compacting: Standalone, client: pulsar.Client, topic: Topic, settings: dict[str, Any]
) -> None:
    messages: list[Message] = []

    def check() -> None:
        for where, how in WAYS[: None if len(messages) > 200 else 1]:
            found = table(topic.name, **where(compacting), **how)
            assert values_of(found) == newest(messages)

    check()
    for rounds in (6, 2, 8):
        publish_to(client, topic.name, history(rounds), **settings)
        messages += history(rounds)
        check()
        topic.compact_and_trim(client) if settings is SINGLE else topic.compact()
        check()
    # Each row is the message that the topic has at that place.
    found = table(topic.name, columns=["value", "__messageId"], **at_bookies(compacting))
    assert found.column_names == ["value", "__messageId"]
    if settings is BATCHED:
        stored = read(topic.name, columns=["value", "__messageId"], **at_bookies(compacting))
        places = {each["__messageId"]: each["value"] for each in stored.read_all().to_pylist()}
        for row in found.to_pylist():
            assert places.get(row["__messageId"], row["value"]) == row["value"]


@pytest.mark.parametrize(("where", "how"), WAYS, ids=WAY_NAMES)
def test_a_change_feed_keeps_a_table_up_to_date(
    compacting: Standalone,
    client: pulsar.Client,
    topic: Topic,
    where: Callable[[Any], dict[str, Any]],
    how: dict[str, Any],
) -> None:
    kept: dict[bytes, bytes] = {}
    token: str | None = None
    messages: list[Message] = []
    for rounds in (7, 1, 3):
        publish_to(client, topic.name, history(rounds), **BATCHED)
        messages += history(rounds)
        feed = changes(topic.name, after=token, **where(compacting), **how)
        _apply(kept, feed)
        token = feed.token
        assert kept == newest(messages)
        assert list(changes(topic.name, after=token, **where(compacting), **how)) == []
        topic.compact()  # does nothing to a feed while the topic has what is behind its token


def _apply(kept: dict[bytes, bytes], feed: Changes) -> None:
    for batch in feed:
        assert batch.schema == feed.schema
        rows = batch.to_pylist()
        assert len({each["__key"] for each in rows}) == len(rows)
        for each in rows:
            if each["__change"] == "delete":
                assert each["value"] is None
                kept.pop(each["__key"], None)
            else:
                assert each["__change"] == "upsert"
                kept[each["__key"]] = each["value"]


def test_a_feed_goes_on_behind_any_of_its_batches(
    compacting: Standalone, client: pulsar.Client, topic: Topic
) -> None:
    messages = history(12)
    publish_to(client, topic.name, messages, **BATCHED)
    where = {**at_bookies(compacting), "options": SMALL_SLICES}
    feed = changes(topic.name, **where)
    assert feed.schema.names[-1] == "__change"
    kept: dict[bytes, bytes] = {}
    tokens = [feed.token]
    states = [dict(kept)]
    for batch in feed:
        _apply_batch(kept, batch)
        tokens.append(feed.token)
        states.append(dict(kept))
    assert len(set(tokens)) > 3
    for token, state in zip(tokens, states, strict=True):
        rest = changes(topic.name, after=token, **where)
        for batch in rest:
            _apply_batch(state, batch)
        assert state == newest(messages)


def _apply_batch(kept: dict[bytes, bytes], batch: pa.RecordBatch) -> None:
    for each in batch.to_pylist():
        kept.pop(each["__key"], None)
        if each["__change"] == "upsert":
            kept[each["__key"]] = each["value"]


def test_changes_that_were_trimmed_are_told_of_and_the_feed_begins_anew(
    compacting: Standalone, client: pulsar.Client, topic: Topic
) -> None:
    where = at_bookies(compacting)
    publish_to(client, topic.name, history(1), **SINGLE)
    feed = changes(topic.name, **where)
    _apply({}, feed)
    publish_to(client, topic.name, history(8), **SINGLE)
    topic.compact_and_trim(client)
    with pytest.raises(DataLossError, match=f"{topic.name}: .*begin anew"):
        changes(topic.name, after=feed.token, **where)
    kept: dict[bytes, bytes] = {}
    _apply(kept, changes(topic.name, **where))
    assert kept == newest(history(1) + history(8))


def _lose_compacted(plan: Any) -> None:
    """The compacted ledgers of a plan are gone. Bookies keep for a while what was deleted."""
    for job in plan.jobs:
        if job.is_compacted:
            parts = job.wanted.parts
            job.wanted.parts = tuple(replace(each, ledger_id=1_000_000) for each in parts)


@pytest.mark.parametrize("is_compacted_again", [True, False])
def test_a_compacted_ledger_that_goes_meanwhile_ends_a_feed_and_has_a_table_read_again(
    compacting: Standalone,
    client: pulsar.Client,
    topic: Topic,
    monkeypatch: pytest.MonkeyPatch,
    is_compacted_again: bool,
) -> None:
    where = at_bookies(compacting)
    publish_to(client, topic.name, history(6), **SINGLE)
    topic.compact_and_trim(client)
    feed = changes(topic.name, **where)
    _lose_compacted(feed._plan)
    with pytest.raises(DataLossError, match="was compacted again, or deleted, while it was read"):
        list(feed)

    planned, plans = tables._planned, []

    def plan_and_lose(*arguments: Any) -> Any:
        plans.append(planned(*arguments))
        if len(plans) == 1:
            _lose_compacted(plans[0])
            if is_compacted_again:
                publish_to(client, topic.name, [("key 1", b"later")])
                topic.compact()
        return plans[-1]

    monkeypatch.setattr(tables, "_planned", plan_and_lose)
    if is_compacted_again:
        found = table(topic.name, **where)
        assert values_of(found) == newest([*history(6), ("key 1", b"later")])
    else:
        # Nothing has changed: it is lost, and reading again would not help.
        with pytest.raises(DataLossError, match="begin anew"):
            table(topic.name, **where)
    assert len(plans) == 2


def test_through_brokers_a_whole_topic_is_read_and_a_trimmed_one_refused(
    compacting: Standalone, client: pulsar.Client, topic: Topic
) -> None:
    publish_to(client, topic.name, history(8), **SINGLE)
    where = through_brokers(compacting)
    assert values_of(table(topic.name, **where)) == newest(history(8))
    topic.compact_and_trim(client)
    with pytest.raises(OptionError, match="option metadata_url: it is required: the beginning of"):
        table(topic.name, **where)


def test_messages_in_chunks_are_rows(
    compacting: Standalone, client: pulsar.Client, topic: Topic
) -> None:
    large = bytes(range(256)) * 48_000  # 12 MB: three chunks
    producer = client.create_producer(topic.name, batching_enabled=False, chunking_enabled=True)
    producer.send(large[::-1], partition_key="large")
    producer.send(large, partition_key="large")
    producer.close()
    publish_to(client, topic.name, history(6), **SINGLE)
    where = at_bookies(compacting)
    expected = {b"large": large, **newest(history(6))}
    assert values_of(table(topic.name, **where)) == expected
    topic.compact()
    assert values_of(table(topic.name, **where)) == expected
    with pytest.raises(MemoryLimitError, match="table_bytes is 1000000"):
        table(topic.name, table_bytes=1_000_000, **where)


def test_the_same_key_in_two_partitions_is_two_rows(
    compacting: Standalone, client: pulsar.Client, topic: Topic
) -> None:
    name = f"persistent://public/default/table-{next(_numbers)}"
    call(compacting, "PUT", f"{topic_path(name)}/partitions", 2, expect=204)
    for index in range(2):  # so that nothing is trimmed: see `Topic`
        path = f"{topic_path(f'{name}-partition-{index}')}/compaction"
        call(compacting, "PUT", path, expect=204)
    where = at_bookies(compacting)
    feed = changes(name, **where)
    assert list(feed) == []
    for index in range(2):
        publish_to(client, f"{name}-partition-{index}", [("a", b"0"), ("a", b"%d" % index)])
    found = table(name, columns=["value", "__topic"], **where).to_pylist()
    assert found == [
        {"value": b"%d" % index, "__topic": f"{name}-partition-{index}"} for index in range(2)
    ]
    later = changes(name, after=feed.token, columns=["value"], **where)
    assert [each["value"] for batch in later for each in batch.to_pylist()] == [b"0", b"1"]
    assert later.schema.names == ["value", "__key", "__messageId", "__change"]
    with pytest.raises(OptionError, match="option after: the token is of"):
        changes(topic.name, after=later.token, **where)


@dataclass
class Price:
    amount: float
    note: str | None = None


async def test_values_are_columns_by_the_schema_and_tombstones_are_not_decoded(
    compacting: Standalone, client: pulsar.Client, topic: Topic
) -> None:
    async with Client(compacting.url) as sdk:
        producer = await sdk.producer(topic.name, schema=AvroSchema(Price))
        for number in range(60):
            await producer.send(Price(number / 4), key=f"k{number % 3}")
    publish_to(client, topic.name, [("k1", b"")])  # no payload, which AVRO does not take
    where = at_bookies(compacting)
    expected = [{"amount": 14.25, "__key": b"k0"}, {"amount": 14.75, "__key": b"k2"}]
    columns = ["amount", "__key"]
    assert table(topic.name, columns=columns, **where).to_pylist() == expected
    topic.compact()
    assert table(topic.name, columns=columns, **where).to_pylist() == expected
    only = table(topic.name, columns=columns, keys=["k2", "k1"], **where)
    assert only.to_pylist() == expected[1:]
