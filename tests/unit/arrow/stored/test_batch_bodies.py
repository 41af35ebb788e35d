"""Batch bodies split here are those that the wire's own decoder splits."""

import struct
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from magnetar.arrow.stored import batch_split
from magnetar.arrow.stored.batch_split import SplitBatch, split_batch
from magnetar.sdk.batch import encode_batch, encode_plain_batch
from magnetar.sdk.wire.batches import BATCH_MESSAGES_MAX, decode_batch
from magnetar.sdk.wire.errors import MalformedPayloadError
from magnetar.sdk.wire.pulsar_pb2 import KeyValue, SingleMessageMetadata


def payloads_of(body: bytes, count: int) -> list[bytes]:
    parts, lengths, _, _, _ = split_batch(memoryview(body), count)
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


def read_by_hand(found: SplitBatch, index: int) -> SingleMessageMetadata:
    single = SingleMessageMetadata(payload_size=0)
    if index in found.keys:
        single.partition_key = found.keys[index].decode()
    if index in found.event_ms:
        single.event_time = found.event_ms[index]
    return single


@given(
    st.lists(
        st.tuples(
            st.binary(max_size=300),
            st.none() | st.text(max_size=200),
            st.none() | st.integers(min_value=0, max_value=(1 << 64) - 1),
            st.integers(min_value=0, max_value=(1 << 64) - 1),
        ),
        min_size=1,
        max_size=30,
    )
)
def test_keys_and_times_in_the_order_of_the_fields_are_read(
    messages: list[tuple[bytes, str | None, int | None, int]],
) -> None:
    """As official clients write them; a message of this service's own has its size first."""
    singles = [
        SingleMessageMetadata(
            payload_size=len(payload), partition_key=key, event_time=event_ms, sequence_id=number
        )
        for payload, key, event_ms, number in messages
    ]
    heads = [single.SerializeToString() for single in singles]
    body = b"".join(
        struct.pack(">I", len(head)) + head + payload
        for head, (payload, _, _, _) in zip(heads, messages, strict=True)
    )

    found = split_batch(body, len(messages))

    assert payloads_of(body, len(messages)) == [payload for payload, _, _, _ in messages]
    for index, (_, key, event_ms, _) in enumerate(messages):
        known = found.singles.get(index) or read_by_hand(found, index)
        assert (known.partition_key if known.HasField("partition_key") else None) == key
        assert known.event_time == (event_ms or 0)


@pytest.mark.parametrize("event_ms", [1 << 35, 1_700_000_000_000, (1 << 42) - 1])
def test_a_key_and_a_time_of_this_age_take_no_protobuf(event_ms: int) -> None:
    extra = SingleMessageMetadata(partition_key="key", event_time=event_ms)
    body = encode_batch([b"payload"] * 3, [extra.SerializePartialToString()] * 3, 1 << 20)

    found = split_batch(body, 3)

    assert found.keys == dict.fromkeys(range(3), b"key")
    assert found.event_ms == dict.fromkeys(range(3), event_ms)
    assert not found.singles


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
        known = found.singles.get(index) or read_by_hand(found, index)
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


def as_read_one_by_one(body: bytes, count: int) -> SplitBatch | None:
    try:
        return batch_split._split_each(body, count)
    except MalformedPayloadError:
        return None


def assert_same(found: SplitBatch, expected: SplitBatch | None) -> None:
    assert expected is not None
    assert list(map(bytes, found.payloads())) == list(map(bytes, expected.payloads()))
    assert found.lengths == expected.lengths
    keys, event_ms = dict(expected.keys), dict(expected.event_ms)
    for index, single in expected.singles.items():  # long payloads: by protobuf
        known = {each.name for each, _ in single.ListFields()}
        assert known <= {"payload_size", "sequence_id", "partition_key", "event_time"}
        if "partition_key" in known:
            keys[index] = single.partition_key.encode()
        if "event_time" in known:
            event_ms[index] = single.event_time
    assert (found.keys, found.event_ms, found.singles) == (keys, event_ms, {})


def usual_body(
    messages: Sequence[tuple[bytes, str | None, int | None]], first: int, *, in_order: bool
) -> bytes:
    """`in_order`: of the fields, as official clients write them; else as this service's own."""
    parts = []
    for number, (payload, key, event_ms) in enumerate(messages, start=first):
        size = SingleMessageMetadata(payload_size=len(payload)).SerializeToString()
        key_field = SingleMessageMetadata(partition_key=key).SerializePartialToString()
        time_field = SingleMessageMetadata(event_time=event_ms).SerializePartialToString()
        number_field = SingleMessageMetadata(sequence_id=number).SerializePartialToString()
        own = size + number_field + key_field + time_field
        head = key_field + size + time_field + number_field if in_order else own
        parts += [struct.pack(">I", len(head)), head, payload]
    return b"".join(parts)


@given(
    st.lists(
        st.tuples(
            st.binary(max_size=40) | st.sampled_from([b"x" * 127, b"x" * 128, b"x" * 17_000]),
            st.none() | st.text(max_size=3) | st.just("k" * 127),
            st.none() | st.integers(min_value=1 << 35, max_value=(1 << 42) - 1),
        ),
        min_size=1,
        max_size=30,
    ),
    st.sampled_from([0, 100, 16_370, (1 << 63) - 100]),
    st.booleans(),
)
def test_usual_messages_are_read_by_columns_as_one_by_one(
    messages: list[tuple[bytes, str | None, int | None]], first: int, in_order: bool
) -> None:
    body = usual_body(messages, first, in_order=in_order)
    found = batch_split._split_by_columns(body, len(messages))
    assert found is not None
    assert_same(found, as_read_one_by_one(body, len(messages)))


@given(
    st.lists(
        st.tuples(st.binary(max_size=4), st.none() | st.just("k"), st.none() | st.just(1 << 41)),
        min_size=1,
        max_size=5,
    ),
    st.data(),
)
def test_a_spoiled_batch_is_read_by_columns_as_one_by_one_or_not_at_all(
    messages: list[tuple[bytes, str | None, int | None]], data: st.DataObject
) -> None:
    body = bytearray(usual_body(messages, 5, in_order=data.draw(st.booleans())))
    for _ in range(data.draw(st.integers(min_value=1, max_value=3))):
        body[data.draw(st.integers(min_value=0, max_value=len(body) - 1))] = data.draw(
            st.sampled_from([0, 1, 2, 4, 6, 8, 0x12, 0x18, 0x28, 0x40, 0x7F, 0x80, 0xFF])
        )
    found = batch_split._split_by_columns(bytes(body), len(messages))
    if found is not None:
        assert_same(found, as_read_one_by_one(bytes(body), len(messages)))


def test_a_large_batch_is_read_by_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    count = batch_split._COLUMNS_MIN
    body = usual_body(
        [(b"v" * (at % 50), f"key {at}", None) for at in range(count)], 0, in_order=True
    )
    expected = batch_split._split_each(body, count)
    monkeypatch.delattr(batch_split, "_split_each")
    assert_same(split_batch(body, count), expected)


def test_payloads_that_are_all_empty_are_read_by_columns() -> None:
    body = usual_body([(b"", "k" * (at % 3), None) for at in range(9)], 0, in_order=False)
    found = batch_split._split_by_columns(body, 9)
    assert found is not None
    assert list(map(bytes, found.payloads())) == [b""] * 9


@pytest.mark.parametrize(
    "single",
    [
        SingleMessageMetadata(payload_size=0, sequence_id=1),  # all of one size
        SingleMessageMetadata(payload_size=0, sequence_id=1, partition_key="k"),  # by columns
        SingleMessageMetadata(payload_size=0, ordering_key=b"k"),  # by protobuf
    ],
)
def test_a_batch_of_too_many_messages_is_refused(single: SingleMessageMetadata) -> None:
    head = single.SerializeToString()
    item, count = len(head).to_bytes(4, "big") + head, BATCH_MESSAGES_MAX + 1
    with pytest.raises(MalformedPayloadError, match="a batch of 65537 messages"):
        split_batch(item * count, count)
    assert len(split_batch(item * (count - 1), count - 1).lengths) == BATCH_MESSAGES_MAX
    assert len(split_batch(item * count, count, memory_bytes_max=1 << 27).lengths) == count


def test_a_batch_with_millions_of_properties_is_refused() -> None:
    head = SingleMessageMetadata(payload_size=0).SerializeToString()
    properties = SingleMessageMetadata(properties=[KeyValue(key="", value="")])
    head += properties.SerializePartialToString() * 3_000_000
    with pytest.raises(MalformedPayloadError, match="metadata of the batch are too large"):
        split_batch(len(head).to_bytes(4, "big") + head, 1)
