"""From messages to frames and from receipts to those who wait, without a broker."""

import asyncio
from collections.abc import Iterable

import pytest

from magnetar.sdk.batch import EntrySource, MessageBatch
from magnetar.sdk.errors import MessageTooLargeError, SdkError, SendTimeoutError
from magnetar.sdk.message_id import MessageId
from magnetar.sdk.producing.outgoing import OutgoingMessage
from magnetar.sdk.producing.send_lane import SendLane
from magnetar.sdk.producing.under_way import SendsUnderWay
from magnetar.sdk.settings import ProducerSettings
from magnetar.sdk.wire.frames import FrameDecoder
from magnetar.sdk.wire.pulsar_pb2 import CommandSend, CommandSendReceipt, MessageIdData
from magnetar.sdk.wire.topic_name import TopicName

Told = list[tuple[MessageId | None, SdkError | None]]


class Still:
    """A clock that stands where it is put."""

    now_s = 5.0

    def monotonic_s(self) -> float:
        return self.now_s

    def wall_ms(self) -> int:
        return 1


class Wired:
    """A lane, what it wrote, and how often something left."""

    def __init__(
        self,
        settings: ProducerSettings,
        *,
        timeout_ms: int = 0,
        entry_buckets: tuple[int, ...] = (),
    ) -> None:
        self.written = b""
        self.clock = Still()
        self.progress = 0
        topic = TopicName.parse("persistent://public/default/t-partition-2")
        self.under_way = SendsUnderWay(
            topic,
            self.clock,
            timeout_ms=timeout_ms,
            on_progress=self._on_progress,
            is_connected=lambda: True,
        )
        self.lane = SendLane(
            str(topic),
            settings,
            self.clock,
            self.under_way,
            write=self._write,
            entry_buckets=entry_buckets,
        )
        assert list(self.lane.attach(3, "p", b"", 10_000)) == []

    def frames(self) -> list[tuple[CommandSend, list[bytes]]]:
        written, self.written = self.written, b""
        return [
            (command.send, MessageBatch(payload, EntrySource("t"), 1, 0).payloads())
            for command, payload in FrameDecoder().feed(written)
        ]

    def receive(self, *sequence_ids: int) -> bool:
        receipts = [
            CommandSendReceipt(
                producer_id=3,
                sequence_id=each,
                message_id=MessageIdData(ledgerId=1, entryId=10 + each),
            )
            for each in sequence_ids
        ]
        return self.under_way.on_receipts(receipts, None)

    def _write(self, parts: Iterable[bytes]) -> None:
        self.written += b"".join(parts)

    def _on_progress(self) -> None:
        self.progress += 1


def message(payload: bytes, **more: object) -> OutgoingMessage:
    return OutgoingMessage(payload=payload, **more)  # type: ignore[arg-type]  # Fields of its own.


async def test_a_batch_leaves_at_the_end_of_the_turn() -> None:
    wired = Wired(ProducerSettings())
    wired.lane.give(message(b"a"), None)
    wired.lane.give(message(b"b"), None)
    assert (wired.written, wired.lane.messages, wired.lane.payload_bytes) == (b"", 2, 2)
    await asyncio.sleep(0)
    ((send, payloads),) = wired.frames()
    assert (send.sequence_id, send.highest_sequence_id, payloads) == (0, 1, [b"a", b"b"])
    assert wired.lane.next_sequence_id == 2


async def test_what_travels_by_itself_leaves_behind_the_open_batch() -> None:
    wired = Wired(ProducerSettings())
    wired.lane.give(message(b"a"), None)
    wired.lane.give(message(b"later", deliver_at_ms=9), None)
    wired.lane.give(message(b"b"), None)
    wired.lane.close_batches()
    assert [payloads for _, payloads in wired.frames()] == [[b"a"], [b"later"], [b"b"]]


async def test_a_message_for_some_clusters_is_sent_alone_and_names_them() -> None:
    wired = Wired(ProducerSettings())
    wired.lane.give(message(b"a"), None)
    wired.lane.give(message(b"some", replicate_to=["west", "east"]), None)
    wired.lane.give(message(b"b"), None)
    wired.lane.close_batches()
    frames = list(FrameDecoder().feed(wired.written))
    entries = [MessageBatch(payload, EntrySource("t"), 1, 0) for _, payload in frames]
    clusters = [list(each.metadata.replicate_to) for each in entries]
    assert clusters == [[], ["west", "east"], []]


async def test_messages_of_a_transaction_are_batched_apart_from_others() -> None:
    wired = Wired(ProducerSettings())
    for payload, transaction in ((b"a", None), (b"b", (1, 7)), (b"c", (1, 7)), (b"d", (1, 8))):
        wired.lane.give(message(payload), None, transaction)
    wired.lane.close_batches()
    found = [(send.txnid_least_bits, payloads) for send, payloads in wired.frames()]
    assert found == [(0, [b"a"]), (7, [b"b", b"c"]), (8, [b"d"])]


async def test_sequence_ids_of_the_application_end_a_batch_and_never_go_back() -> None:
    wired = Wired(ProducerSettings())
    wired.lane.give(message(b"a", sequence_id=5), None)
    wired.lane.give(message(b"b", sequence_id=6), None)
    wired.lane.give(message(b"c", sequence_id=9), None)
    wired.lane.close_batches()
    found = [(send.sequence_id, payloads) for send, payloads in wired.frames()]
    assert found == [(5, [b"a", b"b"]), (9, [b"c"])]
    with pytest.raises(ValueError, match="must be above 9"):
        wired.lane.give(message(b"d", sequence_id=9), None)
    with pytest.raises(ValueError, match="at most 9223372036854775807"):
        wired.lane.give(message(b"e", sequence_id=1 << 63), None)
    wired.lane.give(message(b"f"), None)
    wired.lane.close_batches()
    assert [(send.sequence_id, payloads) for send, payloads in wired.frames()] == [(10, [b"f"])]


@pytest.mark.parametrize("by_key", [True, False])
async def test_sequence_ids_of_the_application_stay_with_their_messages_in_several_batches(
    by_key: bool,
) -> None:
    wired = Wired(ProducerSettings(batch_by_key=by_key), entry_buckets=(0x4000, 0x8000, 0xC000))
    for sequence_id, key in ((5, "a"), (6, "b"), (7, "a"), (9, "b")):
        wired.lane.give(message(b"%d" % sequence_id, key=key, sequence_id=sequence_id), None)
    wired.lane.give(message(b"10", key="a"), None)
    wired.lane.close_batches()
    found = [
        (each.data, each.sequence_id)
        for _, payload in FrameDecoder().feed(wired.written)
        for each in MessageBatch(payload, EntrySource("t"), 1, 0).messages()
    ]
    assert found == [(b"%d" % each, each) for each in (5, 6, 7, 9, 10)]


async def test_a_message_too_large_is_refused_before_it_is_numbered() -> None:
    wired = Wired(ProducerSettings(batching=False))
    with pytest.raises(MessageTooLargeError):
        wired.lane.give(message(bytes(10_001)), None)
    assert (wired.lane.next_sequence_id, wired.lane.messages) == (0, 0)


async def test_receipts_tell_who_asked_and_end_a_flush() -> None:
    wired = Wired(ProducerSettings(batching=False))
    told: Told = []
    wired.lane.give(message(b"a"), lambda *outcome: told.append(outcome))
    wired.lane.give(message(b"b"), None)
    flushing = asyncio.ensure_future(wired.under_way.flush())
    await asyncio.sleep(0)
    assert wired.receive(0)
    assert told == [(MessageId(1, 10, -1, 2), None)]
    assert not flushing.done()
    assert wired.receive(1)
    await flushing
    assert (wired.progress, wired.lane.messages) == (2, 0)
    assert wired.under_way.last_stored_sequence_id == 1


async def test_a_flush_that_is_cancelled_is_forgotten() -> None:
    wired = Wired(ProducerSettings(batching=False))
    wired.lane.give(message(b"a"), None)
    for _ in range(3):
        flushing = asyncio.ensure_future(wired.under_way.flush())
        await asyncio.sleep(0)
        assert wired.under_way._flush_waiters
        flushing.cancel()
        await asyncio.gather(flushing, return_exceptions=True)
        assert not wired.under_way._flush_waiters
    assert wired.receive(0)
    await wired.under_way.flush()


async def test_the_producer_is_told_once_of_the_messages_of_batches_that_cannot_be_sent() -> None:
    wired = Wired(ProducerSettings(batch_by_key=True))
    assert list(wired.lane.attach(3, "p", b"", 100_000)) == []
    told: Told = []
    for key in ("k", "l"):
        for _ in range(2):
            wired.lane.give(message(bytes(20_000), key=key), lambda *outcome: told.append(outcome))
    assert list(wired.lane.attach(3, "p", b"", 10_000)) == []  # the next broker takes less
    assert (wired.lane.messages, wired.progress) == (4, 0)
    await asyncio.sleep(0)
    assert [type(error) for _, error in told] == [MessageTooLargeError] * 4
    assert (wired.lane.messages, wired.progress) == (0, 1)


async def test_an_error_that_nobody_watched_is_raised_by_the_next_flush_once() -> None:
    wired = Wired(ProducerSettings(batching=False))
    told: Told = []
    wired.lane.give(message(b"a"), lambda *outcome: told.append(outcome))
    wired.lane.give(message(b"b"), None)
    error = SdkError("over")
    wired.under_way.fail_all(error)
    assert told == [(None, error)]
    with pytest.raises(SdkError, match="over"):
        await wired.under_way.flush()
    await wired.under_way.flush()


async def test_flush_raises_the_error_of_a_message_whose_batch_has_callbacks() -> None:
    wired = Wired(ProducerSettings())
    told: Told = []
    wired.lane.give(message(b"a"), None)
    wired.lane.give(message(b"b"), lambda *outcome: told.append(outcome))
    wired.lane.close_batches()
    error = SdkError("over")
    wired.under_way.fail_all(error)
    assert told == [(None, error)]
    with pytest.raises(SdkError, match="over"):
        await wired.under_way.flush()
    await wired.under_way.flush()


async def test_what_has_no_receipt_is_sent_again_as_it_was() -> None:
    wired = Wired(ProducerSettings())
    for payload in (b"a", b"b"):
        wired.lane.give(message(payload), None)
        wired.lane.close_batches()
    first = wired.written
    assert b"".join(wired.lane.attach(3, "p", b"", 10_000)) == first
    assert wired.receive(0)
    again = b"".join(wired.lane.attach(3, "p", b"", 10_000))
    assert again
    assert first.endswith(again)


async def test_a_receipt_that_is_not_next_is_noticed() -> None:
    wired = Wired(ProducerSettings(batching=False))
    wired.lane.give(message(b"a"), None)
    assert not wired.receive(4)
    assert wired.lane.messages == 1


async def test_bulk_payloads_stop_where_the_bytes_end() -> None:
    wired = Wired(ProducerSettings(batching=False))
    payloads = [b"%d" % at for at in range(10)]
    assert wired.lane.give_payloads(payloads, 0, 10, bytes_left=4) == 4
    assert [each for _, found in wired.frames() for each in found] == payloads[:4]
    assert wired.lane.next_sequence_id == 4


async def test_no_entry_is_sent_again_behind_one_that_was_refused() -> None:
    wired = Wired(ProducerSettings())
    for at in range(3):
        wired.lane.give_entry(b"%d" % at, 0, 10 * at, b"")
    wired.under_way.fail_sequence(0, SdkError("refused"))
    assert list(wired.lane.attach(3, "p", b"", 10_000)) == []
    with pytest.raises(SdkError, match="refused"):
        wired.lane.give_entry(b"3", 0, 30, b"")
    with pytest.raises(SdkError, match="refused"):
        await wired.under_way.flush()


async def test_no_entry_is_sent_again_behind_one_that_timed_out() -> None:
    wired = Wired(ProducerSettings(), timeout_ms=10)
    wired.lane.give_entry(b"0", 0, 0, b"")
    wired.clock.now_s += 0.005
    wired.lane.give_entry(b"1", 0, 10, b"")
    wired.clock.now_s += 0.005
    with pytest.raises(SendTimeoutError):
        async with asyncio.timeout(5):
            await wired.under_way.flush()
    assert list(wired.lane.attach(3, "p", b"", 10_000)) == []
    with pytest.raises(SendTimeoutError):
        wired.lane.give_entry(b"2", 0, 20, b"")


async def test_an_outcome_reaches_everybody_though_a_callback_fails() -> None:
    wired = Wired(ProducerSettings(batching=False))
    told: Told = []

    def fail(message_id: MessageId | None, error: SdkError | None) -> None:
        raise RuntimeError("in the application")

    for payload in (b"a", b"b", b"c"):
        wired.lane.give(message(payload), fail)
        wired.lane.give(message(payload), lambda *outcome: told.append(outcome))
    assert wired.receive(0, 1, 2, 3)
    wired.under_way.fail_all(SdkError("over"))
    assert [message_id is not None for message_id, _ in told] == [True, True, False]
    assert wired.progress == 2
    await wired.under_way.flush()
