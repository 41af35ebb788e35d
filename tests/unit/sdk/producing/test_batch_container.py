"""Messages that share a batch."""

from collections.abc import Sequence

from mmh3 import mmh3_32_uintdigest

from magnetar.sdk.batch import EntrySource, MessageBatch
from magnetar.sdk.pending_sends import PendingSend
from magnetar.sdk.producing.batch_container import BatchContainer
from magnetar.sdk.producing.message_encoder import MessageEncoder
from magnetar.sdk.producing.outgoing import OutgoingMessage, TransactionId
from magnetar.sdk.settings import ProducerSettings
from magnetar.sdk.wire.frames import FrameDecoder
from magnetar.sdk.wire.pulsar_pb2 import CommandSend

ONE, OTHER = (1, 7), (1, 8)
BUCKETS = (0x4000, 0x8000, 0xC000)


def sends_of(
    messages: Sequence[tuple[bytes, TransactionId | None]],
    *,
    by_key: bool = False,
    entry_buckets: Sequence[int] = (),
) -> list[PendingSend]:
    """As a producer does it: what does not fit closes what is open."""
    container = BatchContainer(
        messages_max=100, bytes_max=10_000, by_key=by_key, entry_buckets=entry_buckets
    )
    encoder = MessageEncoder("t", ProducerSettings(), None)
    encoder.attach(3, "p", b"", 10_000)
    sends: list[PendingSend] = []

    def close() -> None:
        transaction = container.transaction
        for batch in container.take():
            first = sum(each.messages for each in sends)
            sends.append(encoder.batch(batch, first, transaction=transaction, publish_time_ms=1))

    for payload, transaction in messages:
        key = payload[:1].decode()
        extra = OutgoingMessage(payload=payload, key=None if key == "-" else key).metadata()
        if not container.has_room(len(payload), transaction):
            close()
        container.add(payload, extra, None, now_s=0.0, transaction=transaction)
    close()
    return sends


def opened(send: PendingSend) -> tuple[CommandSend, MessageBatch]:
    ((command, payload),) = FrameDecoder().feed(send.prefix + send.body)
    return command.send, MessageBatch(payload, EntrySource("t"), 1, 0)


def test_a_batch_holds_messages_of_one_transaction_only_in_the_order_of_the_calls() -> None:
    sends = sends_of(
        [(b"a", None), (b"b", ONE), (b"c", ONE), (b"d", OTHER), (b"e", None), (b"f", None)]
    )
    found = [opened(send) for send in sends]
    assert [batch.payloads() for _, batch in found] == [[b"a"], [b"b", b"c"], [b"d"], [b"e", b"f"]]
    assert [_ids(command) for command, _ in found] == [None, ONE, OTHER, None]
    for command, batch in found:
        metadata = batch.metadata
        assert metadata.HasField("txnid_most_bits") == command.HasField("txnid_most_bits")
        assert metadata.txnid_most_bits == command.txnid_most_bits
        assert metadata.txnid_least_bits == command.txnid_least_bits
        assert command.num_messages == batch.batch_size


def test_batches_by_key_of_a_transaction_all_say_so() -> None:
    sends = sends_of([(b"a1", ONE), (b"b1", ONE), (b"a2", ONE)], by_key=True)
    found = [opened(send) for send in sends]
    assert [batch.payloads() for _, batch in found] == [[b"a1", b"a2"], [b"b1"]]
    assert [_ids(command) for command, _ in found] == [ONE, ONE]
    assert [batch.metadata.partition_key for _, batch in found] == ["a", "b"]


def test_a_batch_holds_keys_of_one_entry_bucket_and_says_their_hashes() -> None:
    payloads = [b"%c%d" % (key, number) for number in range(3) for key in b"abcdefghijklmnop"]
    sends = sends_of([(each, None) for each in payloads], entry_buckets=BUCKETS)
    batches = [batch for _, batch in map(opened, sends)]
    assert len(batches) == 4
    for batch in batches:
        hashes = [mmh3_32_uintdigest(each[:1]) & 0xFFFF for each in batch.payloads()]
        assert len({each // 0x4000 for each in hashes}) == 1
        said = batch.metadata.entry_hash_min, batch.metadata.entry_hash_max
        assert said == (min(hashes), max(hashes))
        assert batch.payloads() == [each for each in payloads if each in batch.payloads()]
    assert sorted(each for batch in batches for each in batch.payloads()) == sorted(payloads)


def test_messages_without_a_key_are_in_no_entry_bucket() -> None:
    sends = sends_of([(b"-1", None), (b"a1", None), (b"-2", None)], entry_buckets=BUCKETS)
    without, keyed = (batch for _, batch in map(opened, sends))
    assert (without.payloads(), keyed.payloads()) == ([b"-1", b"-2"], [b"a1"])
    assert not without.metadata.HasField("entry_hash_min")


def test_batches_by_key_are_not_divided_by_entry_buckets_as_well() -> None:
    sends = sends_of([(b"a1", None), (b"b1", None)], by_key=True, entry_buckets=BUCKETS)
    batches = [batch for _, batch in map(opened, sends)]
    assert [each.payloads() for each in batches] == [[b"a1"], [b"b1"]]
    assert not any(each.metadata.HasField("entry_hash_min") for each in batches)


def _ids(command: CommandSend) -> TransactionId | None:
    if not command.HasField("txnid_most_bits"):
        return None
    return command.txnid_most_bits, command.txnid_least_bits
