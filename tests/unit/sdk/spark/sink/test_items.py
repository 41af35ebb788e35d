"""Messages encoded by columns are those that protobuf would write."""

import struct

import pyarrow as pa
import pytest

from magnetar.sdk.spark.errors import SchemaMismatchError
from magnetar.sdk.spark.sink.items import Messages, extras, items, u32s, varints, zigzags
from magnetar.sdk.wire.batches import decode_batch
from magnetar.sdk.wire.hot_commands import encode_varint
from magnetar.sdk.wire.pulsar_pb2 import MessageMetadata

_EDGES = [0, 1, 127, 128, 16_383, 16_384, (1 << 28) - 1, 1 << 28, 1 << 42, (1 << 63) - 1]


def test_varints_are_those_of_the_protocol() -> None:
    for numbers in ([], [5, 0], _EDGES, [1 << 50]):
        assert varints(pa.array(numbers, pa.int64())).to_pylist() == [
            encode_varint(each) for each in numbers
        ]


def test_zigzags_fold_the_sign_into_the_lowest_bit() -> None:
    numbers = [*_EDGES, *(-each - 1 for each in _EDGES)]
    assert zigzags(pa.array(numbers, pa.int64())).to_pylist() == [
        encode_varint(each << 1 if each >= 0 else (-each << 1) - 1) for each in numbers
    ]


def test_sizes_beyond_the_table_are_encoded_too() -> None:
    numbers = [0, 16_383, 16_384, 1 << 20]
    assert u32s(pa.array(numbers)).to_pylist() == [struct.pack(">I", each) for each in numbers]


def _messages() -> Messages:
    properties = pa.array(
        [[("a", "b"), ("long", "x" * 300)], None, [], [("c", "")]],
        pa.map_(pa.string(), pa.string()),
    )
    return Messages(
        value=pa.array([b"one", None, b"", b"x" * 20_000], pa.binary()),
        key=pa.array([b"k", "ä".encode(), None, b""], pa.binary()),
        event_time_ms=pa.array([1_357_016_400_000, None, 0, 5], pa.int64()),
        properties=properties,
    )


@pytest.mark.parametrize("sliced", [False, True])
def test_items_are_messages_of_a_batch_with_all_that_they_have(sliced: bool) -> None:
    messages = _messages()
    if sliced:
        messages = messages.take(pa.array([3, 0, 1, 2])).take(pa.array([1, 2, 3, 0]))
    column = items(messages)
    found = decode_batch(b"".join(column.to_pylist()), 4)
    assert [data for _, data in found] == [b"one", b"", b"", b"x" * 20_000]
    assert [single.null_value for single, _ in found] == [False, True, False, False]
    assert [single.HasField("partition_key") for single, _ in found] == [True, True, False, True]
    assert [single.partition_key for single, _ in found] == ["k", "ä", "", ""]
    assert [single.HasField("event_time") for single, _ in found] == [True, False, True, True]
    assert [single.event_time for single, _ in found] == [1_357_016_400_000, 0, 0, 5]
    assert [[(p.key, p.value) for p in single.properties] for single, _ in found] == [
        [("a", "b"), ("long", "x" * 300)],
        [],
        [],
        [("c", "")],
    ]


def test_extras_are_metadata_of_messages_that_travel_alone() -> None:
    found = [
        MessageMetadata.FromString(
            raw
            + MessageMetadata(producer_name="p", sequence_id=1, publish_time=1).SerializeToString()
        )
        for raw in extras(_messages()).to_pylist()
    ]
    assert [each.partition_key for each in found] == ["k", "ä", "", ""]
    assert [each.event_time for each in found] == [1_357_016_400_000, 0, 0, 5]
    assert [each.null_value for each in found] == [False, True, False, False]
    assert [len(each.properties) for each in found] == [2, 0, 0, 1]


def test_a_key_that_is_no_text_travels_in_base64_and_others_do_not() -> None:
    messages = Messages(pa.array([b"1", b"2"]), key=pa.array([b"\xff\x00", b"text"]))
    (binary, _), (text, _) = decode_batch(b"".join(items(messages).to_pylist()), 2)
    assert (binary.partition_key, binary.partition_key_b64_encoded) == ("/wA=", True)
    assert (text.partition_key, text.partition_key_b64_encoded) == ("text", False)


def test_a_time_before_1970_is_refused() -> None:
    with pytest.raises(SchemaMismatchError, match="before 1970"):
        items(Messages(pa.array([b""]), event_time_ms=pa.array([-1])))


def test_a_property_without_a_value_is_refused() -> None:
    properties = pa.array([[("a", None)]], pa.map_(pa.string(), pa.string()))
    with pytest.raises(SchemaMismatchError, match="without a value"):
        items(Messages(pa.array([b""]), properties=properties))
