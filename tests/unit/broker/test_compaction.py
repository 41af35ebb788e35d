"""Compaction: what an entry is for it, its bounds, and what is stored about it."""

import asyncio
import tracemalloc
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, cast

import pytest

from magnetar.broker.base.entry import kept_words_of
from magnetar.broker.base.errors import UnreadableRecordError
from magnetar.broker.base.naming import check_subscription
from magnetar.broker.base.settings.broker import BrokerSettings
from magnetar.broker.features.compaction.compacted_ledger import (
    NO_LEDGER,
    CompactedLedger,
    CompactionRecord,
    StoredEntries,
    TooManyKeysError,
    pack,
    properties_of,
    record_in,
    unpack,
)
from magnetar.broker.features.compaction.compaction import (
    Compaction,
    CompactionCursor,
    CompactionSurroundings,
    Status,
)
from magnetar.broker.features.compaction.messages import Kind, open_entry, rest_of_batch
from magnetar.broker.features.compaction.passes import NewestMessages
from magnetar.broker.topic import Topic
from magnetar.broker.topic.dispatch.compacted import CompactedSource, EarlyPlace, runs_of
from magnetar.broker.topic.dispatch.range_reads import RangeReads
from magnetar.broker.topic.tail_cache import TailCache, TailCachePool
from magnetar.cursors import NonDurableCursor
from magnetar.ledger.errors import LedgerError, LogUnavailableError, NoSuchLedgerError
from magnetar.ledger.position import EARLIEST, Position
from magnetar.sdk.wire import MessageMetadata, TopicName, encode_payload
from magnetar.sdk.wire.batches import BATCH_MESSAGES_MAX, decode_batch
from magnetar.sdk.wire.compression import Compression, compress
from magnetar.sdk.wire.pulsar_pb2 import CompressionType, SingleMessageMetadata
from tests.unit.broker.harness import Harness, entry
from tests.unit.broker.memory_log import MemoryLog
from tests.unit.broker.memory_parts import TOPIC

_LIMIT = 1 << 20


def batch(*messages: tuple[str, bytes]) -> bytes:
    body = b""
    for key, data in messages:
        head = SingleMessageMetadata(payload_size=len(data), partition_key=key).SerializeToString()
        body += len(head).to_bytes(4, "big") + head + data
    metadata = MessageMetadata(
        producer_name="p", sequence_id=0, publish_time=1, num_messages_in_batch=len(messages)
    )
    return encode_payload(metadata.SerializeToString(), body)


def test_a_batch_keeps_the_indexes_of_what_is_left() -> None:
    stored = batch(("a", b"1"), ("b", b"2"), ("c", b"3"))
    opened = open_entry(stored, batch_bytes_max=_LIMIT)
    rest, lost = rest_of_batch(stored, opened, lambda message: message.key != "b")
    assert rest is not None
    assert lost == 1
    again = open_entry(rest, batch_bytes_max=_LIMIT)
    assert [(each.index, each.key) for each in again.messages] == [(0, "a"), (2, "c")]
    assert list(again.metadata.compacted_batch_indexes) == [0, 2]
    assert again.metadata.num_messages_in_batch == 3
    assert kept_words_of(rest) == (0b101,)
    items = decode_batch(rest[-len(rest) :][_body_at(rest) :], 3)
    assert items[1][0].compacted_out
    assert items[1][1] == b""


def _body_at(stored: bytes) -> int:
    return 10 + int.from_bytes(stored[6:10], "big")


def test_a_batch_that_loses_nothing_stays_as_it_is_and_one_that_loses_all_goes() -> None:
    stored = batch(("a", b"1"), ("b", b"2"))
    opened = open_entry(stored, batch_bytes_max=_LIMIT)
    assert rest_of_batch(stored, opened, lambda _: True) == (stored, 0)
    assert rest_of_batch(stored, opened, lambda _: False) == (None, 2)


@pytest.mark.parametrize(
    ("stored", "kind"),
    [
        (b"no entry at all", Kind.OPAQUE),
        (entry(b"damaged", num_messages_in_batch=2), Kind.OPAQUE),
        (entry(b"marker", marker_type=1), Kind.INTERNAL),
        (entry(b"single"), Kind.SINGLE),
    ],
)
def test_what_cannot_be_looked_into_is_kept(stored: bytes, kind: Kind) -> None:
    assert open_entry(stored, batch_bytes_max=_LIMIT).kind is kind


def test_a_batch_of_millions_of_messages_is_kept_whole_and_costs_no_memory() -> None:
    count = 10_000_000
    body = bytes.fromhex("00000002 1800") * count
    metadata = MessageMetadata(
        producer_name="p",
        sequence_id=0,
        publish_time=1,
        num_messages_in_batch=count,
        compression=CompressionType.ZSTD,
        uncompressed_size=len(body),
    )
    stored = encode_payload(metadata.SerializeToString(), compress(Compression.ZSTD, body))
    tracemalloc.start()
    try:
        opened = open_entry(stored, batch_bytes_max=64 << 20)
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()
    assert (opened.kind, opened.messages) == (Kind.OPAQUE, ())


def test_batches_are_looked_into_up_to_a_number_of_messages() -> None:
    def kind_of(count: int) -> Kind:
        body = bytes.fromhex("00000002 1800") * count
        stored = entry(body, num_messages_in_batch=count)
        return open_entry(stored, batch_bytes_max=64 << 20).kind

    assert kind_of(BATCH_MESSAGES_MAX) is Kind.BATCH
    assert kind_of(BATCH_MESSAGES_MAX + 1) is Kind.OPAQUE


def test_a_batch_above_the_bound_is_kept_whole() -> None:
    metadata = MessageMetadata(
        producer_name="p",
        sequence_id=0,
        publish_time=1,
        num_messages_in_batch=1,
        compression=CompressionType.ZLIB,
        uncompressed_size=101,
    )
    stored = encode_payload(metadata.SerializeToString(), b"whatever")
    assert open_entry(stored, batch_bytes_max=100).kind is Kind.OPAQUE


def test_more_keys_than_fit_into_memory_end_a_compaction() -> None:
    newest = NewestMessages(bytes_max=330, keeps_keyless=False)
    newest.note(Position(1, 0), open_entry(batch(("key", b"1")), batch_bytes_max=_LIMIT))
    newest.note(Position(1, 1), open_entry(batch(("key", b"2")), batch_bytes_max=_LIMIT))
    with pytest.raises(TooManyKeysError, match="compaction_keys_bytes_max"):
        newest.note(Position(1, 2), open_entry(batch(("other", b"1")), batch_bytes_max=_LIMIT))


def test_a_tombstone_gives_its_memory_back() -> None:
    newest = NewestMessages(bytes_max=330, keeps_keyless=False)
    for at in range(5):
        stored = batch((f"{at}", b"1"), (f"{at}", b""))
        newest.note(Position(1, at), open_entry(stored, batch_bytes_max=_LIMIT))
    assert len(newest) == 0


def chunk(uuid: str, chunk_id: int, key: str) -> bytes:
    return entry(
        b"part",
        uuid=uuid,
        chunk_id=chunk_id,
        num_chunks_from_msg=2,
        total_chunk_msg_size=8,
        partition_key=key,
    )


def test_two_chunked_messages_of_one_uuid_are_two() -> None:
    """A producer that comes back with its name counts from the beginning, and so do its uuids."""
    newest = NewestMessages(bytes_max=_LIMIT, keeps_keyless=False)
    stored = [chunk("producer-0", at, key) for key in ("a", "b") for at in range(2)]
    opened = [open_entry(each, batch_bytes_max=_LIMIT) for each in stored]
    for at, each in enumerate(opened):
        newest.note(Position(1, at), each)
    for at, each in enumerate(opened):
        assert newest.keeps(Position(1, at), each, each.messages[0])


@pytest.mark.parametrize("again", [[1], [0, 1], [1, 1]])
def test_chunks_that_were_stored_twice_take_no_message_away(again: list[int]) -> None:
    """A producer that lost its connection sends again what it had no receipt for: the last chunk
    alone is no message."""
    newest = NewestMessages(bytes_max=_LIMIT, keeps_keyless=False)
    stored = [chunk("producer-0", at, "a") for at in (0, 1, *again)]
    opened = [open_entry(each, batch_bytes_max=_LIMIT) for each in stored]
    for at, each in enumerate(opened):
        newest.note(Position(1, at), each)
    kept = [
        each.metadata.chunk_id
        for at, each in enumerate(opened)
        if newest.keeps(Position(1, at), each, each.messages[0])
    ]
    assert kept[:2] == [0, 1]


def test_a_chunked_message_without_its_first_chunk_replaces_no_other() -> None:
    newest = NewestMessages(bytes_max=_LIMIT, keeps_keyless=False)
    whole = open_entry(entry(b"whole", partition_key="a"), batch_bytes_max=_LIMIT)
    end = open_entry(chunk("producer-0", 1, "a"), batch_bytes_max=_LIMIT)
    newest.note(Position(1, 0), whole)
    newest.note(Position(1, 1), end)
    assert newest.keeps(Position(1, 0), whole, whole.messages[0])


def test_what_remembers_chunked_messages_is_bounded() -> None:
    newest = NewestMessages(bytes_max=331, keeps_keyless=False)
    newest.note(Position(1, 0), open_entry(chunk("producer-0", 0, "a"), batch_bytes_max=_LIMIT))
    with pytest.raises(TooManyKeysError):
        newest.note(Position(1, 1), open_entry(chunk("producer-1", 0, "a"), batch_bytes_max=_LIMIT))


def test_messages_without_a_key_stay_only_if_they_are_to() -> None:
    opened = open_entry(entry(b"no key"), batch_bytes_max=_LIMIT)
    for keeps in (False, True):
        newest = NewestMessages(bytes_max=_LIMIT, keeps_keyless=keeps)
        newest.note(Position(1, 0), opened)
        assert newest.keeps(Position(1, 0), opened, opened.messages[0]) is keeps


def test_the_record_comes_back_and_another_format_is_refused() -> None:
    record = CompactionRecord(ledger_id=7, horizon=(3, 9))
    assert record_in(properties_of(record), of="topic") == record
    assert record_in({}, of="topic") is None
    for value in ("", "{}", '{"format":2,"ledger_id":7,"horizon":[3,9]}'):
        with pytest.raises(UnreadableRecordError, match="topic"):
            record_in({"compaction": value}, of="topic")


def test_entries_of_a_compacted_ledger_come_back_and_another_format_is_refused() -> None:
    assert unpack(pack(Position(3, 9), b"entry")) == (Position(3, 9), b"entry")
    for stored in (b"", b"\x02" + bytes(16), b"\x01" + bytes(15)):
        with pytest.raises(UnreadableRecordError):
            unpack(stored)


def test_the_name_of_the_cursor_is_reserved() -> None:
    with pytest.raises(Exception, match="reserved"):
        check_subscription("__compaction")


def test_entries_become_runs_of_consecutive_ones() -> None:
    places = [(1, 0), (1, 1), (1, 3), (2, 4), (2, 5)]
    runs = runs_of([(Position(*each), entry(b"x")) for each in places], is_masked=True)
    assert [(run.first, run.last) for run in runs] == [
        (Position(1, 0), Position(1, 1)),
        (Position(1, 3), Position(1, 3)),
        (Position(2, 4), Position(2, 5)),
    ]
    assert all(run.kept_words is None for run in runs)


class View:
    """What is left of a topic, in memory."""

    def __init__(self, horizon: Position, places: Sequence[Position]) -> None:
        self.horizon = horizon
        self.places = places

    error: LedgerError | None = None

    async def read_behind(
        self, after: Position, *, entries_max: int, bytes_max: int
    ) -> list[tuple[Position, bytes]]:
        if self.error is not None:
            raise self.error
        return [(each, entry(b"compacted")) for each in self.places if each > after][:entries_max]


class Reading:
    """A source on a log with a view, without a dispatcher."""

    def __init__(self, view: View | None) -> None:
        self.log = MemoryLog(first_ledger_id=3)
        self.log.store(*[entry(b"log")] * 4)
        self.log.roll(5)
        self.log.store(*[entry(b"log")] * 4)
        self.view = view
        self.ready = asyncio.Event()
        self.cursor = NonDurableCursor(self.log, "reader", initial=EARLIEST)
        self.source = CompactedSource(
            self.log,
            RangeReads(
                self.log,
                TailCache(TailCachePool(_LIMIT)),
                BrokerSettings(
                    read_ahead_bytes=_LIMIT,
                    read_ahead_entries=2,
                    read_retry_ms=1,
                    read_retry_ms_max=1,
                ),
            ),
            self.cursor,
            label="test",
            on_ready=self.ready.set,
        )
        self.source.early = EarlyPlace(lambda: self.view, self.log.first_position, self.cursor)

    def begin(self, first: Position, *, reads_compacted: bool = True) -> None:
        assert self.source.early is not None
        self.source.early.place(first)
        self.source.read_for(reads_compacted=reads_compacted)
        self.source.rewind()

    async def take(self, count: int) -> list[Position]:
        """The next positions; fewer at the end."""
        found: list[Position] = []
        while len(found) < count and not (
            self.source.after >= self.log.last_confirmed and not self.source.is_reading
        ):
            self.ready.clear()
            got = self.source.next_run()
            if got is None:
                if self.source.is_reading:
                    async with asyncio.timeout(5):
                        await self.ready.wait()
                continue
            run, index = got
            found.append(Position(run.ledger_id, run.first_entry_id + index))
            self.source.advance(run, index + 1)
        return found


_LEFT = [Position(1, 2), Position(3, 1), Position(5, 1)]
_BEHIND = [Position(5, 2), Position(5, 3)]


async def test_what_is_compacted_comes_up_to_the_horizon_and_the_log_behind_it() -> None:
    reading = Reading(View(Position(5, 1), _LEFT))
    reading.begin(EARLIEST)
    assert await reading.take(10) == _LEFT + _BEHIND


async def test_nothing_may_be_left_before_the_horizon() -> None:
    reading = Reading(View(Position(5, 1), []))
    reading.begin(EARLIEST)
    assert await reading.take(10) == _BEHIND


async def test_without_a_compaction_the_log_is_read() -> None:
    reading = Reading(None)
    reading.begin(EARLIEST)
    assert len(await reading.take(10)) == 8


async def test_who_does_not_read_what_is_compacted_reads_the_log() -> None:
    reading = Reading(View(Position(5, 1), _LEFT))
    reading.begin(EARLIEST, reads_compacted=False)
    assert len(await reading.take(10)) == 8


async def test_a_place_in_the_trimmed_part_is_kept_until_that_part_is_acknowledged() -> None:
    reading = Reading(View(Position(5, 1), _LEFT))
    early = reading.source.early
    assert early is not None
    reading.begin(Position(1, 0))
    assert await reading.take(1) == _LEFT[:1]
    assert early.after == Position(1, -1)
    reading.source.rewind()  # not acknowledged: it comes again
    assert await reading.take(2) == _LEFT[:2]
    early.acked([_LEFT[0]])
    assert early.after is None


async def test_a_compaction_that_ends_meanwhile_is_followed() -> None:
    """The earlier compaction's ledger is gone, and the log may be trimmed: nothing of that is
    missed."""
    reading = Reading(View(Position(3, 1), _LEFT[:2]))
    reading.begin(EARLIEST)
    assert await reading.take(1) == _LEFT[:1]
    reading.view = View(Position(5, 2), [Position(3, 1), Position(3, 3), Position(5, 2)])
    reading.log.trim()
    assert await reading.take(10) == [*reading.view.places, Position(5, 3)]


@pytest.mark.parametrize(
    ("consumed", "unreadable"),
    [
        (Position(3, 1), Position(3, 2)),
        (Position(3, 3), Position(5, 0)),
        (EARLIEST, Position(3, 0)),
    ],
)
async def test_a_compacted_ledger_that_cannot_be_read_names_the_entry_after_the_consumed_one(
    consumed: Position, unreadable: Position
) -> None:
    view = View(Position(5, 1), _LEFT)
    view.error = LogUnavailableError("no bookie of ledger 77 answers")
    reading = Reading(view)
    reading.begin(Position(5, 4))
    reading.cursor.ack_cumulative(consumed)
    reading.source.rewind()
    assert reading.source.next_run() is None
    await reading.ready.wait()
    assert reading.source.unreadable == (unreadable, "no bookie of ledger 77 answers")
    assert reading.source.is_view_unreadable
    view.error = None
    await reading.take(1)
    assert not reading.source.is_view_unreadable


async def test_a_log_that_cannot_be_read_behind_the_view_is_told_from_the_view() -> None:
    reading = Reading(View(Position(5, 1), _LEFT))
    reading.log.read_error = LogUnavailableError("no bookie answers")
    reading.begin(EARLIEST)
    await reading.take(3)
    reading.ready.clear()
    assert reading.source.next_run() is None
    await reading.ready.wait()
    assert reading.source.unreadable is not None
    assert reading.source.unreadable[0] == Position(5, 2)
    assert not reading.source.is_view_unreadable


async def test_no_ledger_is_opened_for_a_topic_of_which_nothing_is_left() -> None:
    async def open_ledger(_: int) -> object:
        raise AssertionError("there is none")

    record = CompactionRecord(ledger_id=NO_LEDGER, horizon=(3, 9))
    view = CompactedLedger(record, open_ledger)  # type: ignore[arg-type]
    assert await view.read_behind(EARLIEST, entries_max=1, bytes_max=1) == []
    assert await view.last() is None


class MemoryLedger:
    """A compacted ledger in memory."""

    ledger_id = 100

    def append(
        self, payloads: Sequence[bytes], on_done: Callable[[LedgerError | None], None]
    ) -> int:
        on_done(None)
        return 0

    async def close(self) -> None:
        """Nothing is open."""


class MemoryLedgers:
    async def create(self, **_: object) -> MemoryLedger:
        return MemoryLedger()

    async def open(self, ledger_id: int) -> StoredEntries:
        raise NoSuchLedgerError(f"nothing is read from ledger {ledger_id} here")


class StoredCursor:
    """The cursor of a compaction."""

    mark_delete = EARLIEST

    async def set_properties(self, properties: Mapping[str, str]) -> None:
        """Keep nothing."""

    def ack_cumulative(self, position: Position) -> None:
        self.mark_delete = position

    async def persist(self) -> None:
        """Nothing is stored."""


class OpenTransaction:
    """Hides what is stored after a position."""

    aborted: Collection[Position] = ()

    def __init__(self, before: Position) -> None:
        self._before = before

    def limit(self, last: Position) -> Position:
        return min(last, self._before)


async def compacted_topic() -> tuple[Compaction, MemoryLog, Topic]:
    """A topic whose three messages with two keys were compacted."""
    harness = Harness()
    topic = await harness.services.topics.get(TopicName.parse(TOPIC))
    topic.policies = topic.policies.with_values(compaction_threshold_bytes=1)
    harness.log.store(*(entry(b"x", partition_key=key) for key in "aba"))
    around = CompactionSurroundings(
        cast(Any, MemoryLedgers()), harness.settings, asyncio.Semaphore(1), harness.clock
    )

    async def is_stored() -> bool:
        return False

    async def open_cursor(_: Position) -> StoredCursor:
        return StoredCursor()

    at = CompactionCursor(is_stored, cast(Any, open_cursor))
    made = Compaction(topic, cast(Any, harness.log), at, around, find_last=topic.last_message.find)
    made.start()
    await made.finished()
    assert (made.status, made.stats.entries) == (Status.SUCCESS, 2)
    return made, harness.log, topic


async def test_a_run_that_finds_nothing_new_leaves_what_is_said_of_the_compacted_ledger() -> None:
    compaction, _, _ = await compacted_topic()
    before = compaction.shown()["compacted_ledger"]
    compaction.start()
    await compaction.finished()
    assert compaction.status is Status.SUCCESS
    assert compaction.shown()["compacted_ledger"] == before


@pytest.mark.parametrize("begins_ledger", [False, True])
async def test_no_compaction_begins_while_an_open_transaction_hides_all_that_is_new(
    begins_ledger: bool,
) -> None:
    compaction, log, topic = await compacted_topic()
    before = log.last_confirmed
    if begins_ledger:
        log.roll(8)
        before = Position(8, -1)
    topic.visibility.hidden = cast(Any, OpenTransaction(before))
    log.store(entry(b"x", partition_key="a"))
    compaction.look()
    assert not compaction.is_working
    topic.visibility.hidden = None
    compaction.look()
    assert compaction.is_working
    await compaction.finished()
