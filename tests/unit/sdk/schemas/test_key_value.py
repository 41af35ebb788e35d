"""KEY_VALUE and AUTO schemas."""

import pytest

from magnetar.sdk.errors import SchemaDefinitionError, SchemaValueError
from magnetar.sdk.schemas import (
    DOUBLE,
    INSTANT,
    INT32,
    STRING,
    AutoConsumeSchema,
    AutoProduceSchema,
    AutoTextSchema,
    AvroObjectSchema,
    JsonObjectSchema,
    KeyValue,
    KeyValueEncoding,
    KeyValueSchema,
    SchemaInfo,
    SchemaType,
    schema_of,
)

INLINE = KeyValueSchema(STRING, INT32)
SEPARATED = KeyValueSchema(STRING, INT32, KeyValueEncoding.SEPARATED)


def test_an_inline_payload_holds_both_with_their_sizes() -> None:
    raw = INLINE.encode(KeyValue("k", 1))
    assert raw.hex() == "000000016b0000000400000001"
    assert INLINE.decode(raw) == KeyValue("k", 1)
    assert INLINE.encode_key(KeyValue("k", 1)) is None


def test_a_missing_part_has_size_minus_one() -> None:
    raw = INLINE.encode(KeyValue(None, None))
    assert raw.hex() == "ffffffff" * 2
    assert INLINE.decode(raw) == KeyValue(None, None)


def test_a_separated_key_is_the_messages() -> None:
    value = KeyValue("k", 1)
    assert (SEPARATED.encode(value), SEPARATED.encode_key(value)) == (bytes([0, 0, 0, 1]), b"k")
    assert SEPARATED.decode(bytes([0, 0, 0, 1]), key=b"k") == value


def test_a_separated_value_may_be_missing_in_both_directions() -> None:
    value: KeyValue[str, int] = KeyValue("k", None)
    assert (SEPARATED.is_null(value), SEPARATED.encode_key(value)) == (True, b"k")
    assert SEPARATED.decode_null(key=b"k") == value
    nothing: KeyValue[str, int] = KeyValue(None, None)
    assert (SEPARATED.is_null(nothing), SEPARATED.is_null_key(nothing)) == (True, True)
    assert SEPARATED.decode_null() == nothing
    assert not SEPARATED.is_null_key(value)
    # Inline, the payload says what is missing.
    assert (INLINE.is_null(value), INLINE.is_null_key(nothing)) == (False, False)
    assert INLINE.decode_null(key=b"k") is None


@pytest.mark.parametrize("raw", [b"", b"\0\0\0\5a", b"\xff" * 3, b"\xff" * 9, b"\x80" + bytes(7)])
def test_bytes_that_are_no_pair_are_told(raw: bytes) -> None:
    with pytest.raises(SchemaValueError):
        INLINE.decode(raw)


def test_the_definition_says_all_that_is_needed_to_read() -> None:
    for schema in (INLINE, SEPARATED):
        assert schema.info is not None
        again = schema_of(schema.info)
        assert again.info == schema.info
        value = KeyValue("k", 5)
        assert again.decode(schema.encode(value), key=schema.encode_key(value)) == value


def test_a_definition_that_makes_no_sense_is_told() -> None:
    for info in (
        SchemaInfo(SchemaType.KEY_VALUE, b"\xff"),
        SchemaInfo(SchemaType.KEY_VALUE, bytes(8), {"key.schema.type": "NONSENSE"}),
        SchemaInfo(SchemaType.PROTOBUF, b""),
        SchemaInfo(SchemaType.AVRO, b"{"),
    ):
        with pytest.raises(SchemaDefinitionError):
            schema_of(info)


def test_auto_consume_reads_each_version_with_its_own_schema() -> None:
    schema = AutoConsumeSchema().for_topic()
    assert schema.decode(b"raw") == b"raw"
    for version, info in ((b"a", STRING.info), (b"b", INLINE.info)):
        assert info is not None
        assert schema.is_missing(version)
        schema.add_version(version, info)
    assert schema.decode(b"text", b"a") == "text"
    assert schema.decode(INLINE.encode(KeyValue("k", 1)), b"b") == KeyValue("k", 1)
    assert SEPARATED.info is not None
    schema.add_version(b"c", SEPARATED.info)
    assert schema.decode_null(b"c", b"k") == KeyValue("k", None)
    assert (schema.decode_null(b"a"), schema.decode_null()) == (None, None)
    with pytest.raises(SchemaValueError):
        schema.encode(b"")


_ITEM = {
    "type": "record",
    "name": "Item",
    "fields": [
        {"name": "name", "type": ["null", "string"]},
        {"name": "count", "type": "long", "default": 1},
    ],
}


def test_text_is_encoded_by_the_topics_schema() -> None:
    avro = AvroObjectSchema(_ITEM)
    for info, text, payload in (
        (None, b"\xffanything", b"\xffanything"),
        (STRING.info, "ä".encode(), "ä".encode()),
        (JsonObjectSchema(_ITEM).info, b'{"name": "a"}', b'{"name": "a"}'),
        (avro.info, b'{"name": "a", "count": 2}', avro.encode({"name": "a", "count": 2})),
        (avro.info, b'{"name": null}', avro.encode({"name": None, "count": 1})),
        (INT32.info, b" -5", INT32.encode(-5)),
        (DOUBLE.info, b"2", DOUBLE.encode(2.0)),
    ):
        schema = AutoTextSchema().for_topic()
        schema.adopt(info)
        assert schema.encode(text) == payload
        assert schema.info == info


@pytest.mark.parametrize(
    ("info", "text"),
    [
        (AvroObjectSchema(_ITEM).info, b"plain text"),
        (AvroObjectSchema(_ITEM).info, b'{"name": "a", "coutn": 2}'),
        (AvroObjectSchema(_ITEM).info, b'{"count": "many"}'),
        (AvroObjectSchema(_ITEM).info, b"[1]"),
        (JsonObjectSchema(_ITEM).info, b"{"),
        (JsonObjectSchema(_ITEM).info, b'"text"'),
        (JsonObjectSchema(_ITEM).info, b'{"count": NaN}'),
        (STRING.info, b"\xff"),
        (INT32.info, b"1.5"),
        (INT32.info, b"many"),
        (INSTANT.info, b"2001-02-03T04:05:06Z"),
        (INLINE.info, b'{"key": "k", "value": 1}'),
        (SchemaInfo(SchemaType.PROTOBUF, b"{}"), b"{}"),
        (SchemaInfo(SchemaType.AVRO, b"{"), b"{}"),
    ],
)
def test_text_that_the_topics_schema_does_not_take_is_refused_with_its_name(
    info: SchemaInfo, text: bytes
) -> None:
    schema = AutoTextSchema()
    schema.adopt(info)
    with pytest.raises(SchemaValueError, match=f"the topic's schema is {info.type.value}: "):
        schema.encode(text)


def test_auto_produce_takes_what_the_topics_schema_can_read() -> None:
    schema = AutoProduceSchema()
    assert schema.encode(b"anything") == b"anything"
    schema.adopt(STRING.info)
    assert schema.encode("ä".encode()) == "ä".encode()
    with pytest.raises(SchemaValueError):
        schema.encode(b"\xff")
