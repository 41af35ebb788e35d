"""Compaction against a plain model: the newest of each key, in order, under its own id.

A random history of single messages, batches in all codecs, chunked messages, tombstones, messages
without a key and encrypted batches, spread over ledgers, is compacted at random moments, each time
on top of what the compaction before has left; ledgers that were compacted may be trimmed.
"""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st

from magnetar.broker.base.entry import kept_words_of
from magnetar.broker.base.settings.broker import BrokerSettings
from magnetar.broker.features.compaction.compacted_ledger import (
    NO_LEDGER,
    CompactedLedger,
    CompactionRecord,
)
from magnetar.broker.features.compaction.messages import Kind, last_index_of, open_entry
from magnetar.broker.features.compaction.passes import Source, learn, write
from magnetar.cursors import words_from_bits
from magnetar.ledger.errors import LedgerError
from magnetar.ledger.position import EARLIEST, Position
from magnetar.sdk.wire import MessageMetadata, check_checksum, encode_payload
from magnetar.sdk.wire.compression import Compression, compress
from magnetar.sdk.wire.pulsar_pb2 import SingleMessageMetadata
from tests.unit.broker.memory_log import ManualClock, MemoryLog

_KEYS = st.sampled_from([None, "a", "b", "c", "d"])
_MESSAGES = st.tuples(_KEYS, st.sampled_from(["value", "value", "empty", "null"]))
_STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("single"), _MESSAGES, st.sampled_from(Compression)),
        st.tuples(
            st.just("batch"),
            st.lists(_MESSAGES, min_size=1, max_size=5),
            st.sampled_from(Compression),
        ),
        st.tuples(st.just("chunks"), _KEYS, st.integers(2, 3)),
        st.tuples(st.just("chunks_again"), _KEYS, st.integers(2, 3)),
        st.tuples(st.just("encrypted"), _KEYS, st.just(0)),
        st.tuples(st.just("roll"), st.just(0), st.just(0)),
        st.tuples(st.just("compact"), st.just(0), st.integers(1, 3)),
        st.tuples(st.just("trim"), st.just(0), st.just(0)),
    ),
    min_size=1,
    max_size=30,
)


class MemoryLedger:
    """A ledger that is written, and then read."""

    ledger_id = 1

    def __init__(self) -> None:
        self.entries: list[bytes] = []

    @property
    def last_add_confirmed(self) -> int:
        return len(self.entries) - 1

    def append(
        self, payloads: Sequence[bytes], on_done: Callable[[LedgerError | None], None]
    ) -> int:
        self.entries += payloads
        on_done(None)
        return len(self.entries) - len(payloads)

    async def close(self) -> None:
        """Nothing to do."""

    def abandon(self) -> None:
        """Nothing to do."""

    async def read(self, first: int, last: int, *, bytes_max: int = 1) -> list[bytes]:
        return self.entries[first : last + 1]


Name = tuple[Position, int]
"""A message by its id: position and batch index, -1 if it is in no batch."""


@dataclass
class Model:
    """What was published, and what is to be left of it."""

    log: MemoryLog = field(default_factory=MemoryLog)
    sent: list[tuple[list[Name], str | None, bool]] = field(default_factory=list)
    """The ids of a message (several if it is chunked), its key, whether it is a tombstone."""
    opaque: list[Position] = field(default_factory=list)
    count: int = 0

    def store(self, metadata: MessageMetadata, body: bytes) -> Position:
        metadata.producer_name, metadata.publish_time = "producer", 1
        metadata.sequence_id = self.count
        self.log.store(encode_payload(metadata.SerializeToString(), body))
        return self.log.last_confirmed

    def left(self) -> list[Name]:
        newest: dict[str, int] = {}
        for at, (_, key, is_tombstone) in enumerate(self.sent):
            if key is not None:
                newest[key] = at
                if is_tombstone:
                    del newest[key]
        stays = set(newest.values())
        names = [name for at in stays for name in self.sent[at][0]]
        return sorted(names + [(position, -1) for position in self.opaque])

    def single(self, message: tuple[str | None, str], codec: Compression) -> None:
        key, kind = message
        self.count += 1
        data = b"%d" % self.count if kind == "value" else b""
        metadata = MessageMetadata(null_value=kind == "null")
        _compress(metadata, codec, data)
        if key is not None:
            metadata.partition_key = key
        position = self.store(metadata, compress(codec, data))
        self.sent.append(([(position, -1)], key, kind != "value"))

    def batch(self, messages: Sequence[tuple[str | None, str]], codec: Compression) -> None:
        parts, named = [], []
        for index, (key, kind) in enumerate(messages):
            self.count += 1
            data = b"%d" % self.count if kind == "value" else b""
            single = SingleMessageMetadata(payload_size=len(data), null_value=kind == "null")
            if key is not None:
                single.partition_key = key
            head = single.SerializeToString()
            parts.append(len(head).to_bytes(4, "big") + head + data)
            named.append((index, key, kind != "value"))
        body = b"".join(parts)
        metadata = MessageMetadata(num_messages_in_batch=len(messages))
        _compress(metadata, codec, body)
        position = self.store(metadata, compress(codec, body))
        self.sent += [([(position, index)], key, gone) for index, key, gone in named]

    def chunks_again(self, key: str | None, count: int) -> None:
        """Of a producer that came back with its name, and counts from the beginning."""
        self.chunks(key, count, uuid="producer-0")

    def chunks(self, key: str | None, count: int, *, uuid: str = "") -> None:
        self.count += 1
        names = []
        for chunk in range(count):
            metadata = MessageMetadata(
                uuid=uuid or f"producer-{self.count}",
                num_chunks_from_msg=count,
                total_chunk_msg_size=count,
                chunk_id=chunk,
            )
            if key is not None:
                metadata.partition_key = key
            names.append((self.store(metadata, b"x"), -1))
        self.sent.append((names, key, False))

    def encrypted(self, key: str | None) -> None:
        metadata = MessageMetadata(num_messages_in_batch=2)
        metadata.encryption_keys.add(key="name", value=b"secret")
        if key is not None:
            metadata.partition_key = key
        self.opaque.append(self.store(metadata, b"nobody can read this"))


def _compress(metadata: MessageMetadata, codec: Compression, body: bytes) -> None:
    if codec is not Compression.NONE:
        metadata.compression = codec.wire
        metadata.uncompressed_size = len(body)


async def compacted(
    model: Model, before: CompactedLedger | None, portion_entries: int
) -> tuple[CompactedLedger, MemoryLedger]:
    settings = BrokerSettings(
        compaction_keys_bytes_max=1 << 20,
        compaction_batch_bytes_max=1 << 20,
        read_ahead_entries=portion_entries,
        read_ahead_bytes=1 << 20,
        compaction_bytes_per_s=0,
        compaction_retains_keyless=False,
    )
    horizon = model.log.last_confirmed
    source = Source(model.log, before, horizon, settings, clock=ManualClock(), check=lambda: None)
    newest = await learn(source, settings)
    ledger = MemoryLedger()
    written = await write(source, newest, ledger, settings)
    assert written.entries == len(ledger.entries)

    async def open_ledger(_: int) -> MemoryLedger:
        return ledger

    ledger_id = ledger.ledger_id if ledger.entries else NO_LEDGER
    record = CompactionRecord(ledger_id=ledger_id, horizon=horizon)
    return CompactedLedger(record, open_ledger), ledger


async def read_through(view: CompactedLedger, after: Position) -> list[tuple[Position, bytes]]:
    found: list[tuple[Position, bytes]] = []
    while more := await view.read_behind(after, entries_max=2, bytes_max=1 << 20):
        found += more
        after = more[-1][0]
    return found


def names_in(entries: Sequence[tuple[Position, bytes]]) -> list[Name]:
    """The ids of the messages that a client would show."""
    names: list[Name] = []
    for position, entry in entries:
        assert check_checksum(entry)
        opened = open_entry(entry, batch_bytes_max=1 << 20)
        if opened.kind is Kind.OPAQUE:
            names.append((position, -1))
            continue
        indexes = [message.index for message in opened.messages]
        names += [(position, index) for index in indexes]
        if opened.kind is Kind.BATCH:
            assert last_index_of(entry) == indexes[-1]
            bits = sum(1 << index for index in indexes)
            assert kept_words_of(entry) in ((), words_from_bits(bits))
            if len(indexes) < opened.metadata.num_messages_in_batch:
                assert kept_words_of(entry)
    return names


@settings(max_examples=150, deadline=None)
@given(steps=_STEPS)
def test_what_is_left_is_the_newest_of_each_key_in_order(steps: list[tuple]) -> None:  # type: ignore[type-arg]
    async def story() -> None:
        model, view = Model(), None
        for step, what, how in [*steps, ("compact", 0, 2)]:
            if step == "roll":
                model.log.roll(max(model.log.entries) + 3)
            elif step == "trim":
                if view is not None and min(model.log.entries) < view.horizon.ledger_id:
                    model.log.trim()
            elif step == "compact":
                if model.log.last_confirmed.entry_id >= 0:
                    view, _ = await compacted(model, view, how)
                    await check(model, view)
            elif step == "encrypted":
                model.encrypted(what)
            else:
                getattr(model, step)(what, how)

    asyncio.run(story())


async def check(model: Model, view: CompactedLedger) -> None:
    """All of it, and from every place on."""
    expected = model.left()
    assert names_in(await read_through(view, EARLIEST)) == expected
    for position, _ in expected:
        assert names_in(await read_through(view, position)) == [
            name for name in expected if name[0] > position
        ]
    last = await view.last()
    assert (last[0] if last is not None else None) == (expected[-1][0] if expected else None)
