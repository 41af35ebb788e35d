"""The passes of a compaction let other tasks run, and keep to the rate limit when decompressed."""

import asyncio
from collections.abc import Callable, Sequence

import pytest

from magnetar.broker.base.settings.broker import BrokerSettings
from magnetar.broker.features.compaction import passes
from magnetar.broker.features.compaction.compacted_ledger import CompactionStoppedError
from magnetar.broker.features.compaction.messages import OpenedEntry, open_entry
from magnetar.broker.features.compaction.passes import Source, learn, write
from magnetar.ledger.errors import LedgerError
from magnetar.ledger.system import SystemClock
from magnetar.sdk.batch import encode_batch
from magnetar.sdk.wire import MessageMetadata, encode_payload
from magnetar.sdk.wire.batches import BATCH_MESSAGES_MAX
from magnetar.sdk.wire.compression import Compression, compress
from magnetar.sdk.wire.pulsar_pb2 import CompressionType, SingleMessageMetadata
from tests.unit.broker.memory_log import MemoryLog

BATCH_MESSAGES = 50
MESSAGES_PER_TURN_MAX = 512 + BATCH_MESSAGES


def small_batches(count: int) -> list[bytes]:
    """Batches with little data, and every message of another key."""
    found: list[bytes] = []
    for number in range(count):
        extras = [
            SingleMessageMetadata(partition_key=f"{number}-{at}").SerializePartialToString()
            for at in range(BATCH_MESSAGES)
        ]
        found.append(compressed(encode_batch([b"x"] * BATCH_MESSAGES, extras, 0), BATCH_MESSAGES))
    return found


def compressed(body: bytes, messages: int) -> bytes:
    metadata = MessageMetadata(
        producer_name="p",
        sequence_id=0,
        publish_time=1,
        num_messages_in_batch=messages,
        compression=CompressionType.ZLIB,
        uncompressed_size=len(body),
    )
    return encode_payload(metadata.SerializeToString(), compress(Compression.ZLIB, body))


def source_of(
    entries: Sequence[bytes], settings: BrokerSettings, check: Callable[[], None] = lambda: None
) -> Source:
    log = MemoryLog()
    log.store(*entries)
    return Source(log, None, log.last_confirmed, settings, clock=SystemClock(), check=check)


class MemoryWriter:
    """A ledger in memory that counts what is written."""

    ledger_id = 100

    def __init__(self) -> None:
        self.entries = 0

    def append(
        self, payloads: Sequence[bytes], on_done: Callable[[LedgerError | None], None]
    ) -> int:
        self.entries += len(payloads)
        on_done(None)
        return 0

    async def close(self) -> None:
        """Nothing is open."""

    def abandon(self) -> None:
        """Nothing is open."""


async def test_no_step_of_a_pass_decodes_more_messages_than_a_turn_may_have(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    steps = [0]

    def counted(entry: bytes, *, batch_bytes_max: int) -> OpenedEntry:
        opened = open_entry(entry, batch_bytes_max=batch_bytes_max)
        steps[-1] += len(opened.messages)
        return opened

    async def tick() -> None:
        while True:
            steps.append(0)
            await asyncio.sleep(0)

    monkeypatch.setattr(passes, "open_entry", counted)
    settings = BrokerSettings(compaction_bytes_per_s=0)
    source = source_of(small_batches(100), settings)
    ticking = asyncio.create_task(tick())
    newest = await learn(source, settings)
    writer = MemoryWriter()
    await write(source, newest, writer, settings)
    ticking.cancel()
    assert (len(newest), writer.entries) == (100 * BATCH_MESSAGES, 100)
    assert sum(steps) == 2 * 100 * BATCH_MESSAGES
    assert max(steps) <= MESSAGES_PER_TURN_MAX


async def test_a_compaction_stops_within_a_portion() -> None:
    checks = 0

    def check() -> None:
        nonlocal checks
        checks += 1
        if checks > 4:
            raise CompactionStoppedError("the topic is being closed")

    settings = BrokerSettings(compaction_bytes_per_s=0)
    with pytest.raises(CompactionStoppedError):
        await learn(source_of(small_batches(100), settings, check), settings)


@pytest.mark.parametrize("is_damaged", [False, True])
async def test_the_rate_limit_counts_what_compressed_batches_hold(*, is_damaged: bool) -> None:
    body = encode_batch([bytes(1 << 20)], [b""], 0)
    entry = compressed(body[:-1] if is_damaged else body, 1)
    settings = BrokerSettings(compaction_bytes_per_s=20 << 20)
    source = source_of([entry] * 4, settings)
    loop = asyncio.get_running_loop()
    begin_s = loop.time()
    await learn(source, settings)
    assert loop.time() - begin_s >= 0.19


class CountedSource(Source):
    """A source that counts the bytes beyond those of the entries."""

    added_bytes = 0

    async def pause_after(self, entry: bytes, opened: OpenedEntry) -> None:
        before = self._unpaid_bytes
        await super().pause_after(entry, opened)
        self.added_bytes += max(0, self._unpaid_bytes - before)


@pytest.mark.parametrize(("messages", "counts"), [(1, True), (BATCH_MESSAGES_MAX + 1, False)])
async def test_a_batch_that_is_not_decompressed_counts_as_it_is_stored(
    messages: int, *, counts: bool
) -> None:
    """A false number of messages, or a false size, must not hold up the compaction of a topic."""
    body = encode_batch([bytes(100_000)], [b""], 0)
    entry = compressed(body, messages)
    log = MemoryLog()
    log.store(entry)
    settings = BrokerSettings(compaction_bytes_per_s=0)
    source = CountedSource(
        log, None, log.last_confirmed, settings, clock=SystemClock(), check=lambda: None
    )
    await learn(source, settings)
    assert source.added_bytes == (len(body) - len(entry) if counts else 0)
