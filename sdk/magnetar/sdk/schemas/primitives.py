"""Primitive schemas, which have no definition: bytes, text, numbers, times. Pure.

All numbers are big-endian, and times count from 1970 in UTC, as in the Java client:

BOOLEAN 1 byte; INT8 … INT64; FLOAT, DOUBLE IEEE 754; DATE, TIME, TIMESTAMP int64 ms (of the day for
TIME); INSTANT int64 s, int32 ns; LOCAL_DATE int64 day; LOCAL_TIME int64 ns of the day;
LOCAL_DATE_TIME int64 day, int64 ns of the day.
"""

import struct
from collections.abc import Callable
from datetime import UTC, date, datetime, time, timedelta
from typing import Generic

from magnetar.sdk.errors import SchemaValueError
from magnetar.sdk.schema import Schema, SchemaInfo, SchemaType, T

_DAY = timedelta(days=1)
_MICROSECOND = timedelta(microseconds=1)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_EPOCH_DAY = date(1970, 1, 1).toordinal()


class BytesSchema(Schema[bytes]):
    """Bytes as they are; no schema is sent to the broker."""

    def encode(self, value: bytes) -> bytes:
        if not isinstance(value, bytes):
            raise SchemaValueError(f"expected bytes, got {type(value).__name__}")
        return value

    def decode(self, data: bytes, version: bytes = b"", key: bytes | None = None) -> bytes:
        return data


class StringSchema(Schema[str]):
    """Text, as UTF-8."""

    # The official clients of C++ and Python send this text as the definition, Java's sends none.
    info = SchemaInfo(SchemaType.STRING)

    def encode(self, value: str) -> bytes:
        if not isinstance(value, str):
            raise SchemaValueError(f"expected a str, got {type(value).__name__}")
        try:
            return value.encode()
        except UnicodeEncodeError as error:
            raise SchemaValueError(f"the text cannot be encoded as UTF-8: {error}") from error

    def decode(self, data: bytes, version: bytes = b"", key: bytes | None = None) -> str:
        try:
            return data.decode()
        except UnicodeDecodeError as error:
            raise SchemaValueError(f"the payload is not UTF-8: {error}") from error


class PrimitiveSchema(Schema[T], Generic[T]):
    """A schema for values of one fixed layout; the constants below are its only instances."""

    def __init__(
        self,
        kind: SchemaType,
        layout: str,
        to_fields: Callable[[T], tuple[object, ...]],
        from_fields: Callable[..., T],
    ) -> None:
        self.info = SchemaInfo(kind)
        self._layout = struct.Struct(layout)
        self._to_fields, self._from_fields = to_fields, from_fields

    def encode(self, value: T) -> bytes:
        try:
            return self._layout.pack(*self._to_fields(value))
        except (struct.error, TypeError, ValueError, OverflowError, AttributeError) as error:
            raise SchemaValueError(f"{value!r} is not a valid {self._name}: {error}") from error

    def decode(self, data: bytes, version: bytes = b"", key: bytes | None = None) -> T:
        try:
            return self._from_fields(*self._layout.unpack(data))
        except (struct.error, ValueError, OverflowError) as error:
            raise SchemaValueError(
                f"{len(data)} bytes are not a valid {self._name}: {error}"
            ) from error

    @property
    def _name(self) -> str:
        assert self.info is not None
        return self.info.type.value


def _ms_of(value: datetime) -> tuple[int]:
    return ((_with_zone(value) - _EPOCH) // (1000 * _MICROSECOND),)


def _with_zone(value: datetime) -> datetime:
    if value.tzinfo is None:
        raise ValueError("the time has no time zone")
    return value


def _ns_of_day(value: time) -> int:
    seconds = (value.hour * 60 + value.minute) * 60 + value.second
    return (seconds * 1_000_000 + value.microsecond) * 1_000


def _time_of_day(ns: int) -> time:
    # Python knows no nanoseconds: what is below a microsecond is cut off.
    microseconds, day = ns // 1_000, _DAY // _MICROSECOND
    if not 0 <= microseconds < day:
        raise ValueError(f"{ns} ns is no time of a day")
    return (datetime.min + microseconds * _MICROSECOND).time()


def _instant_fields(value: datetime) -> tuple[int, int]:
    microseconds = (_with_zone(value) - _EPOCH) // _MICROSECOND
    return microseconds // 1_000_000, microseconds % 1_000_000 * 1_000


def _moment(microseconds: int) -> datetime:
    return _EPOCH + microseconds * _MICROSECOND


def _day(days: int) -> date:
    return date.fromordinal(days + _EPOCH_DAY)


def _boolean(value: bool) -> tuple[bool]:
    if not isinstance(value, bool):
        raise TypeError("expected a bool")
    return (value,)


def _integer(kind: SchemaType, layout: str) -> PrimitiveSchema[int]:
    return PrimitiveSchema(kind, layout, lambda value: (value,), int)


def _real(kind: SchemaType, layout: str) -> PrimitiveSchema[float]:
    return PrimitiveSchema(kind, layout, lambda value: (value,), float)


def _moments(kind: SchemaType) -> PrimitiveSchema[datetime]:
    return PrimitiveSchema(kind, ">q", _ms_of, lambda ms: _moment(ms * 1000))


BYTES = BytesSchema()
STRING = StringSchema()
BOOLEAN = PrimitiveSchema(SchemaType.BOOLEAN, ">?", _boolean, bool)
INT8 = _integer(SchemaType.INT8, ">b")
INT16 = _integer(SchemaType.INT16, ">h")
INT32 = _integer(SchemaType.INT32, ">i")
INT64 = _integer(SchemaType.INT64, ">q")
FLOAT = _real(SchemaType.FLOAT, ">f")
DOUBLE = _real(SchemaType.DOUBLE, ">d")
DATE = _moments(SchemaType.DATE)
"""A moment to the millisecond, as Java's `Date`."""
TIMESTAMP = _moments(SchemaType.TIMESTAMP)
TIME: PrimitiveSchema[time] = PrimitiveSchema(
    SchemaType.TIME,
    ">q",
    lambda value: (_ns_of_day(value) // 1_000_000,),
    lambda ms: _time_of_day(ms * 1_000_000),
)
INSTANT: PrimitiveSchema[datetime] = PrimitiveSchema(
    SchemaType.INSTANT,
    ">qi",
    _instant_fields,
    lambda seconds, ns: _moment(seconds * 1_000_000 + ns // 1_000),
)
LOCAL_DATE: PrimitiveSchema[date] = PrimitiveSchema(
    SchemaType.LOCAL_DATE, ">q", lambda value: (value.toordinal() - _EPOCH_DAY,), _day
)
LOCAL_TIME: PrimitiveSchema[time] = PrimitiveSchema(
    SchemaType.LOCAL_TIME, ">q", lambda value: (_ns_of_day(value),), _time_of_day
)
LOCAL_DATE_TIME: PrimitiveSchema[datetime] = PrimitiveSchema(
    SchemaType.LOCAL_DATE_TIME,
    ">qq",
    lambda value: (value.toordinal() - _EPOCH_DAY, _ns_of_day(value.time())),
    lambda day, ns: datetime.combine(_day(day), _time_of_day(ns)),
)

PRIMITIVES: dict[SchemaType, Schema[object]] = {
    schema.info.type: schema  # type: ignore[misc]  # Each of its own type; whoever looks them up knows.
    for schema in (
        STRING,
        BOOLEAN,
        INT8,
        INT16,
        INT32,
        INT64,
        FLOAT,
        DOUBLE,
        DATE,
        TIMESTAMP,
        TIME,
        INSTANT,
        LOCAL_DATE,
        LOCAL_TIME,
        LOCAL_DATE_TIME,
    )
    if schema.info is not None
}
"""Primitive schemas by their type."""
