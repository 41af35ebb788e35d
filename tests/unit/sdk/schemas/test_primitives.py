"""Primitive schemas: the bytes of the Java client, and refusals of what does not fit."""

from datetime import UTC, date, datetime, time

import pytest

from magnetar.sdk import schemas
from magnetar.sdk.errors import SchemaValueError
from magnetar.sdk.schema import Schema

MOMENT = datetime(2001, 2, 3, 4, 5, 6, 789_000, tzinfo=UTC)


@pytest.mark.parametrize(
    ("schema", "value", "raw"),
    [
        (schemas.BYTES, b"\x00a", "0061"),
        (schemas.STRING, "aä", "61c3a4"),
        (schemas.BOOLEAN, True, "01"),
        (schemas.INT8, -2, "fe"),
        (schemas.INT16, 258, "0102"),
        (schemas.INT32, -1, "ffffffff"),
        (schemas.INT64, 1 << 40, "0000010000000000"),
        (schemas.FLOAT, 1.5, "3fc00000"),
        (schemas.DOUBLE, -2.0, "c000000000000000"),
        (schemas.DATE, MOMENT, (981_173_106_789).to_bytes(8, "big").hex()),
        (schemas.TIMESTAMP, MOMENT, (981_173_106_789).to_bytes(8, "big").hex()),
        (schemas.TIME, time(0, 0, 1, 2_000), (1_002).to_bytes(8, "big").hex()),
        (schemas.INSTANT, MOMENT, "000000003a7b8372" + (789_000_000).to_bytes(4, "big").hex()),
        (schemas.LOCAL_DATE, date(1970, 1, 3), "0000000000000002"),
        (schemas.LOCAL_TIME, time(0, 0, 0, 5), (5_000).to_bytes(8, "big").hex()),
        (
            schemas.LOCAL_DATE_TIME,
            datetime(1970, 1, 2, 0, 0, 0, 7),
            "0000000000000001" + (7_000).to_bytes(8, "big").hex(),
        ),
    ],
)
def test_values_travel_as_in_the_java_client(
    schema: Schema[object], value: object, raw: str
) -> None:
    assert schema.encode(value).hex() == raw
    assert schema.decode(bytes.fromhex(raw)) == value


@pytest.mark.parametrize(
    ("schema", "value"),
    [
        (schemas.BYTES, "text"),
        (schemas.STRING, b"bytes"),
        (schemas.BOOLEAN, 1),
        (schemas.INT8, 128),
        (schemas.INT64, 1 << 63),
        (schemas.INT32, "1"),
        (schemas.DOUBLE, "1"),
        (schemas.TIMESTAMP, datetime(2001, 1, 1)),
        (schemas.LOCAL_DATE, 5),
    ],
)
def test_a_value_that_does_not_fit_is_refused(schema: Schema[object], value: object) -> None:
    with pytest.raises(SchemaValueError):
        schema.encode(value)


@pytest.mark.parametrize("schema", [schemas.INT32, schemas.INSTANT, schemas.LOCAL_TIME])
@pytest.mark.parametrize("raw", [b"", b"\xff" * 3, b"\xff" * 8, b"\xff" * 12])
def test_bytes_that_are_no_value_are_told(schema: Schema[object], raw: bytes) -> None:
    try:
        value = schema.decode(raw)
    except SchemaValueError:
        return
    assert schema.decode(schema.encode(value)) == value


def test_text_that_utf_8_has_no_form_for_is_refused() -> None:
    with pytest.raises(SchemaValueError):
        schemas.STRING.encode("\ud800")
