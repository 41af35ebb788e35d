"""From values to messages: what may go as plain payloads, and what may not."""

from typing import Any

import pytest

from magnetar.sdk.errors import SchemaValueError
from magnetar.sdk.producing.outgoing import single_metadata
from magnetar.sdk.producing.value_encoder import ValueEncoder
from magnetar.sdk.schemas import INT32, STRING
from magnetar.sdk.schemas.key_value import KeyValue, KeyValueEncoding, KeyValueSchema
from magnetar.sdk.wire.pulsar_pb2 import SingleMessageMetadata


def test_values_go_as_plain_payloads_only_if_none_has_a_key() -> None:
    schema = KeyValueSchema(STRING, STRING, KeyValueEncoding.SEPARATED)
    encoder: ValueEncoder[KeyValue[str, str]] = ValueEncoder("t", schema, ())
    assert encoder.payloads([KeyValue("k", "b")]) is None
    # A missing key is marked in the metadata: it is more than a payload, too.
    assert encoder.payloads([KeyValue(None, "a")]) is None
    texts: ValueEncoder[str] = ValueEncoder("t", STRING, ())
    assert texts.payloads(["a", ""]) == [b"a", b""]
    assert texts.payloads(["a", None]) is None
    raw: ValueEncoder[bytes] = ValueEncoder("t", None, ())
    assert raw.payloads([b"a", b""]) == [b"a", b""]
    assert raw.payloads([b"a", None]) is None


@pytest.mark.parametrize("wrong", ["text", 1, "", bytearray(b"b")])
def test_without_a_schema_only_bytes_are_sent_one_by_one_or_many(wrong: Any) -> None:
    encoder: ValueEncoder[bytes] = ValueEncoder("t", None, ())
    expected = f"expected bytes, got {type(wrong).__name__}"
    with pytest.raises(SchemaValueError, match=expected):
        encoder.message(wrong)
    with pytest.raises(SchemaValueError, match=expected):
        encoder.payloads([b"a", wrong])


def test_a_value_that_is_none_is_a_null() -> None:
    for message in (
        ValueEncoder[bytes]("t", None, ()).message(None, "k"),
        ValueEncoder[int]("t", INT32, ()).message(None, "k"),
    ):
        assert (message.payload, message.is_null, message.is_plain) == (b"", True, False)
        metadata = message.metadata()
        assert metadata is not None
        assert (metadata.null_value, metadata.partition_key) == (True, "k")
        single = SingleMessageMetadata.FromString(single_metadata(metadata) + b"\x18\x00")
        assert single.null_value


def test_separated_pairs_mark_what_they_lack() -> None:
    schema = KeyValueSchema(STRING, STRING, KeyValueEncoding.SEPARATED)
    encoder: ValueEncoder[KeyValue[str, str]] = ValueEncoder("t", schema, ())
    for value, is_null, is_null_key in (
        (KeyValue("k", "v"), False, False),
        (KeyValue("k", None), True, False),
        (KeyValue(None, "v"), False, True),
        (KeyValue(None, None), True, True),
    ):
        message = encoder.message(value)
        metadata = message.metadata()
        assert metadata is not None
        assert (metadata.null_value, metadata.null_partition_key) == (is_null, is_null_key)
        single = SingleMessageMetadata.FromString(single_metadata(metadata) + b"\x18\x00")
        assert (single.null_value, single.null_partition_key) == (is_null, is_null_key)
