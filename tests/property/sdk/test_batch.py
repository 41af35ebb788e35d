"""Batches come back as they were; arbitrary bodies are split or refused."""

from hypothesis import given
from hypothesis import strategies as st

from magnetar.sdk.batch import (
    EntrySource,
    MessageBatch,
    encode_batch,
    encode_plain_batch,
    mask_from_words,
    words_from_mask,
)
from magnetar.sdk.wire import MalformedPayloadError, MessageMetadata, encode_payload
from magnetar.sdk.wire.batches import decode_batch
from magnetar.sdk.wire.pulsar_pb2 import CompressionType, KeyValue, SingleMessageMetadata

# Around every place where the encoding changes its shape.
SEQUENCE_IDS = st.one_of(
    st.integers(0, (1 << 62)),
    st.sampled_from([0, 127, 128, 16_383, 16_384, 32_767, 1 << 21, 1 << 28, 1 << 35]).flatmap(
        lambda n: st.integers(max(0, n - 5), n + 5)
    ),
)
PAYLOADS = st.lists(st.one_of(st.binary(max_size=20), st.binary(min_size=120, max_size=140)))


@given(PAYLOADS, SEQUENCE_IDS)
def test_fast_encoding_is_what_protobuf_writes(payloads: list[bytes], first: int) -> None:
    expected = b""
    for at, payload in enumerate(payloads):
        single = SingleMessageMetadata(payload_size=len(payload), sequence_id=first + at)
        raw = single.SerializeToString()
        expected += len(raw).to_bytes(4, "big") + raw + payload
    assert encode_plain_batch(payloads, first) == expected


@given(
    st.lists(st.tuples(st.binary(max_size=20), st.text(max_size=5), st.text(max_size=5))),
    SEQUENCE_IDS,
)
def test_batch_with_properties_comes_back(
    messages: list[tuple[bytes, str, str]], first: int
) -> None:
    extras = [
        SingleMessageMetadata(
            partition_key=key, properties=[KeyValue(key="k", value=value)]
        ).SerializePartialToString()
        for _, key, value in messages
    ]
    body = encode_batch([payload for payload, _, _ in messages], extras, first)
    items = decode_batch(body, len(messages))
    assert [
        (data, single.partition_key, single.properties[0].value) for single, data in items
    ] == messages
    assert [single.sequence_id for single, _ in items] == [
        first + at for at in range(len(messages))
    ]


@given(st.binary(max_size=80), st.integers(0, 5))
def test_arbitrary_body_is_split_or_refused(body: bytes, count: int) -> None:
    try:
        items = decode_batch(body, count)
    except MalformedPayloadError:
        return
    assert len(items) == count


@given(
    st.binary(max_size=60),
    st.one_of(st.none(), st.integers(-5, 5)),
    st.sampled_from(CompressionType.values()),
    st.integers(0, 100),
    st.lists(st.integers(-(1 << 63), (1 << 63) - 1), max_size=2),
)
def test_arbitrary_entry_is_read_or_refused(
    body: bytes, count: int | None, codec: CompressionType, size: int, ack_set: list[int]
) -> None:
    metadata = MessageMetadata(
        producer_name="p",
        sequence_id=1,
        publish_time=2,
        num_messages_in_batch=count,
        compression=codec,
        uncompressed_size=size,
    )
    payload = encode_payload(metadata.SerializeToString(), body)
    try:
        batch = MessageBatch(payload, EntrySource("t"), 1, 2, 0, ack_set)
        messages = batch.messages()
    except MalformedPayloadError:
        return
    assert len(messages) <= batch.count


@given(st.integers(0, (1 << 200) - 1))
def test_ack_set_words_come_back(mask: int) -> None:
    assert mask_from_words(words_from_mask(mask)) == mask
