"""Batch bodies split here are those that the wire's own decoder splits."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from magnetar.sdk.batch import encode_batch, encode_plain_batch
from magnetar.sdk.spark.batch_bodies import split_batch
from magnetar.sdk.wire.batches import decode_batch
from magnetar.sdk.wire.errors import MalformedPayloadError
from magnetar.sdk.wire.pulsar_pb2 import KeyValue, SingleMessageMetadata


def payloads_of(body: bytes, count: int) -> list[bytes]:
    parts, lengths, _, _ = split_batch(memoryview(body), count)
    whole = b"".join(parts)
    found, at = [], 0
    for length in lengths:
        found.append(whole[at : at + length])
        at += length
    assert at == len(whole)
    return found


@given(
    st.lists(st.binary(max_size=300), min_size=1, max_size=60),
    st.integers(min_value=0, max_value=1 << 40),
)
def test_plain_messages_come_out_as_they_went_in(payloads: list[bytes], first: int) -> None:
    assert payloads_of(encode_plain_batch(payloads, first), len(payloads)) == payloads


@given(
    st.integers(min_value=0, max_value=20_000),
    st.integers(min_value=1, max_value=300),
    st.sampled_from([0, 100, 127, 16_000, 16_383, 2_097_000]),
)
def test_messages_of_one_size_come_out_as_they_went_in(size: int, count: int, first: int) -> None:
    count = min(count, 400_000 // (size + 1) + 1)
    payloads = [bytes([number % 251]) * size for number in range(count)]
    assert payloads_of(encode_plain_batch(payloads, first), count) == payloads


@given(
    st.lists(
        st.tuples(
            st.binary(max_size=40),
            st.builds(
                SingleMessageMetadata,
                payload_size=st.just(0),
                partition_key=st.none() | st.text(max_size=5),
                event_time=st.none() | st.integers(min_value=0, max_value=1 << 50),
                null_value=st.none() | st.booleans(),
                null_partition_key=st.none() | st.booleans(),
                compacted_out=st.none() | st.booleans(),
                properties=st.lists(
                    st.builds(KeyValue, key=st.text(max_size=3), value=st.text(max_size=3)),
                    max_size=2,
                ),
            ),
        ),
        min_size=1,
        max_size=30,
    ),
    st.integers(min_value=0, max_value=1 << 20),
)
def test_every_field_of_a_message_is_noticed(
    messages: list[tuple[bytes, SingleMessageMetadata]], first: int
) -> None:
    extras = []
    for _, single in messages:
        copied = SingleMessageMetadata.FromString(single.SerializePartialToString())
        copied.ClearField("payload_size")
        extras.append(copied.SerializePartialToString())
    body = encode_batch([payload for payload, _ in messages], extras, first)
    expected = decode_batch(body, len(messages))

    found = split_batch(body, len(messages))

    assert payloads_of(body, len(messages)) == [payload for _, payload in expected]
    for index, (single, _) in enumerate(expected):
        known = found.singles.get(index, SingleMessageMetadata(payload_size=0))
        for field in ("partition_key", "event_time", "null_value", "compacted_out"):
            assert known.HasField(field) == single.HasField(field), field
            assert getattr(known, field) == getattr(single, field), field
        assert list(known.properties) == list(single.properties)


@given(st.binary(max_size=200), st.integers(min_value=1, max_value=20))
def test_arbitrary_bytes_give_a_batch_or_our_error(body: bytes, count: int) -> None:
    try:
        found = split_batch(body, count)
    except MalformedPayloadError:
        return
    assert sum(found.lengths) == sum(map(len, found.parts)) <= len(body)


def test_a_torn_batch_is_refused() -> None:
    body = encode_plain_batch([b"x" * 100] * 50, 0)
    for cut in (1, 3, 50, len(body) - 1):
        with pytest.raises(MalformedPayloadError):
            split_batch(body[:-cut], 50)
