"""The message index beside a model: whatever is published, fails, is switched and trimmed, indexes
grow, are given once, and a lag that is called exact is the number of messages that are there.
"""

import asyncio
from collections.abc import Mapping

from hypothesis import given
from hypothesis import strategies as st

from magnetar.broker.base.entry_metadata import (
    INDEX_MAX,
    EntryMetadata,
    PrefixEncoder,
    bare,
    metadata_in,
    part_prefixes,
)
from magnetar.broker.features.message_index.index_end import IndexEnd, find_end
from magnetar.broker.features.message_index.index_record import IndexRecord
from magnetar.broker.features.message_index.lag import (
    EntryFact,
    count_messages,
    fact_of,
    view_of,
)
from magnetar.cursors import NonDurableCursor
from magnetar.ledger.position import EARLIEST, Position
from tests.unit.broker.harness import batch, entry
from tests.unit.broker.memory_log import MemoryLog

_COUNTS = st.integers(1, 5)


@given(
    time_ms=st.integers(0, 2**64 - 1),
    index=st.integers(0, INDEX_MAX),
    before=st.integers(0, INDEX_MAX),
    body=st.binary(max_size=50),
)
def test_a_prefix_comes_back_as_it_was_written(
    time_ms: int, index: int, before: int, body: bytes
) -> None:
    since = max(0, index - before)
    prefix = PrefixEncoder(time_ms, unbroken_since=since).encode(index)
    assert metadata_in(prefix + body) == EntryMetadata(time_ms, index, since)
    assert bare(prefix + body) == body
    assert part_prefixes([body, prefix + body])[0][1] == body


@given(st.binary(max_size=60) | st.binary(max_size=60).map(lambda tail: b"\x0e\x02" + tail))
def test_noise_is_an_entry_with_an_index_or_without(data: bytes) -> None:
    found = metadata_in(data)
    assert found is None or found.index is None or 0 <= found.index <= INDEX_MAX
    assert data.endswith(bare(data))
    (entries, prefixes) = part_prefixes([data])
    assert (prefixes[0] if prefixes is not None else b"") + entries[0] == data


class _Topic:
    """The rules of `MessageIndex`, without a broker around them."""

    def __init__(self) -> None:
        self.log = MemoryLog()
        self.record: IndexRecord | None = None
        self.is_on = False
        self.next = self.since = 0
        self.end: IndexEnd | None = None
        self.given: list[int] = []
        self.messages: dict[Position, int] = {}

    async def open(self, is_on: bool) -> None:
        was_written = self.record is not None and self.record.is_written
        self.is_on, self.end = is_on, None
        if not is_on and not was_written:
            return
        end = await find_end(self.log, self.record)
        if was_written != is_on:
            self.record = IndexRecord(end.next, is_on)
        if is_on:
            self.next, self.since, self.end = end.next, end.unbroken_since, end

    def publish(self, count: int, *, is_lost: bool) -> None:
        payload = entry() if count == 1 else batch(count)
        if self.is_on:
            self.next += count
            prefix = PrefixEncoder(1, unbroken_since=self.since).encode(self.next - 1)
            payload = prefix + payload
            if is_lost:
                self.since = self.next
                return
            self.given.append(self.next - 1)
            self.end = IndexEnd(self.next, self.since)
        elif is_lost:
            return
        ledger_id = next(reversed(self.log.entries))
        self.messages[Position(ledger_id, len(self.log.entries[ledger_id]))] = count
        self.log.store(payload)

    def roll(self) -> None:
        self.log.roll(next(reversed(self.log.entries)) + 1)

    def trim(self) -> None:
        if len(self.log.entries) > 1:
            if self.is_on:
                self.record = IndexRecord(self.next, is_written=True)
            self.log.trim()

    def facts(self) -> Mapping[Position, EntryFact | None]:
        return {
            Position(ledger_id, at): fact_of(stored)
            for ledger_id, entries in self.log.entries.items()
            for at, stored in enumerate(entries)
        }


_STEPS = st.lists(
    st.tuples(st.just("publish"), _COUNTS)
    | st.tuples(st.sampled_from(["lose", "open", "close", "roll", "trim"]), _COUNTS),
    max_size=40,
)


@given(steps=_STEPS, starts=st.booleans(), acked=st.lists(st.integers(0, 30), max_size=8))
def test_indexes_are_given_once_and_a_lag_that_is_called_exact_is(
    steps: list[tuple[str, int]], starts: bool, acked: list[int]
) -> None:
    asyncio.run(_play(steps, starts, acked))


async def _play(steps: list[tuple[str, int]], starts: bool, acked: list[int]) -> None:
    topic = _Topic()
    await topic.open(starts)
    for what, count in steps:
        match what:
            case "publish" | "lose":
                topic.publish(count, is_lost=what == "lose")
            case "open" | "close":
                await topic.open(what == "open")
            case "roll":
                topic.roll()
            case "trim":
                topic.trim()
    assert topic.given == sorted(set(topic.given)), "an index was given twice, or grew smaller"
    there = [
        Position(ledger_id, at)
        for ledger_id, entries in topic.log.entries.items()
        for at in range(len(entries))
    ]
    if topic.end is None or not there:
        return
    cursor = NonDurableCursor(topic.log, "s", initial=EARLIEST)
    chosen = {there[number] for number in acked if number < len(there)}
    cursor.ack_many(chosen)
    view = view_of(cursor, topic.end)
    assert view is not None
    found = None if cursor.is_caught_up else count_messages(view, topic.facts())
    if found is not None:
        assert found == sum(topic.messages[each] for each in there if each not in chosen)
