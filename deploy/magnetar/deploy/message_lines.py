"""Messages as lines of text and of JSON, for output and input. Pure.

`magnetar read --json | magnetar produce --json` copies messages: a line holds a whole message.

| name | what |
|---|---|
| `payload` | the bytes as text; null: a message without a value |
| `payload_base64` | the bytes, if they are not UTF-8; published unchanged |
| `value` | in place of both: the value by the topic's schema, which encodes it again |
| `key`, `key_base64` | the key, of text or of bytes |
| `properties` | an object of text |
| `event_time_ms` | the application's own time |
| `ordering_key_base64` | the key that orders the message, if it is not `key` |
| `deliver_at_ms` | input only: the message is not delivered before this time |
| `id`, `publish_time_ms`, `topic` | where and when it was stored; ignored on input |

Other names are refused: a misspelt name would lose its value.
"""

import base64
import binascii
import dataclasses
import json
from dataclasses import dataclass, field
from datetime import date, datetime, time
from decimal import Decimal
from enum import Enum
from typing import Any
from uuid import UUID

from magnetar.deploy.errors import SettingsError
from magnetar.sdk.errors import SchemaError
from magnetar.sdk.message import Message

_OF_STORAGE = ("id", "publish_time_ms", "topic")
_VALUES = ("payload", "payload_base64", "value")
_KEYS = ("key", "key_base64")
_KNOWN = frozenset(
    (*_OF_STORAGE, *_VALUES, *_KEYS, "properties", "event_time_ms", "ordering_key_base64")
) | {"deliver_at_ms"}
_SHOWN_CHARACTERS_MAX = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class GivenMessage:
    """A message to publish."""

    payload: bytes | None
    """Bytes of the payload; None: the message has no value."""
    is_encoded: bool = False
    """Whether the payload is sent unchanged; otherwise the topic's schema encodes it."""
    key: str | bytes | None = None
    properties: dict[str, str] = field(default_factory=dict)
    event_time_ms: int | None = None
    ordering_key: bytes | None = None
    deliver_at_ms: int | None = None


def message_of_json(line: bytes) -> GivenMessage:
    """Parse a line of JSON.

    Raises:
        SettingsError: the line is not a message; the text says what is wrong.
    """
    try:
        found = json.loads(line)
    except ValueError as error:
        raise _bad(line, f"no JSON: {error}") from error
    if not isinstance(found, dict):
        raise _bad(line, "not a JSON object")
    unknown = sorted(found.keys() - _KNOWN)
    if unknown:
        known = ", ".join(sorted(_KNOWN))
        raise _bad(line, f"unknown name {unknown[0]!r}; known are {known}")
    try:
        payload, is_encoded = _payload_of(found)
        return GivenMessage(
            payload=payload,
            is_encoded=is_encoded,
            key=_key_of(found),
            properties=_properties_of(found),
            event_time_ms=_whole_number(found, "event_time_ms"),
            ordering_key=_bytes_of(found, "ordering_key_base64"),
            deliver_at_ms=_whole_number(found, "deliver_at_ms"),
        )
    except ValueError as error:
        raise _bad(line, str(error)) from error


def _payload_of(found: dict[str, Any]) -> tuple[bytes | None, bool]:
    given = [name for name in _VALUES if name in found]
    if len(given) != 1:
        raise ValueError("give exactly one of payload, payload_base64 and value")
    value = found[given[0]]
    if value is None:
        return None, True
    if given[0] == "payload_base64":
        return _bytes_of(found, "payload_base64"), True
    if given[0] == "payload" and not isinstance(value, str):
        raise ValueError("payload must be text or null; JSON values go by the name value")
    text = value if isinstance(value, str) else json.dumps(value)
    return text.encode(), False


def _key_of(found: dict[str, Any]) -> str | bytes | None:
    if found.get("key") is not None and found.get("key_base64") is not None:
        raise ValueError("give one of key and key_base64")
    key = found.get("key")
    if key is not None and not isinstance(key, str):
        raise ValueError("key must be text or null")
    return _bytes_of(found, "key_base64") if key is None else key


def _properties_of(found: dict[str, Any]) -> dict[str, str]:
    properties = found.get("properties") or {}
    if not isinstance(properties, dict) or not all(
        isinstance(value, str) for value in properties.values()
    ):
        raise ValueError("properties must be an object of texts")
    return properties


def _bytes_of(found: dict[str, Any], name: str) -> bytes | None:
    text = found.get(name)
    if text is None:
        return None
    try:
        return base64.b64decode(text, validate=True)
    except (TypeError, ValueError, binascii.Error) as error:
        raise ValueError(f"{name} is no base64") from error


def _whole_number(found: dict[str, Any], name: str) -> int | None:
    number = found.get(name)
    if number is not None and (not isinstance(number, int) or isinstance(number, bool)):
        raise ValueError(f"{name} must be a whole number")
    return number


def _bad(line: bytes, why: str) -> SettingsError:
    shown = line[:_SHOWN_CHARACTERS_MAX].decode(errors="replace")
    return SettingsError(f"bad line {shown!r}: {why}")


def json_of_message(message: Message[object], *, as_is: bool) -> str:
    """Return a message as a line of JSON. `as_is`: with the bytes, even if the topic's schema can
    decode them."""
    fields: dict[str, object] = {
        "id": str(message.message_id),
        "publish_time_ms": message.publish_time_ms,
        "key": None,
        "properties": dict(message.properties),
    }
    if message.event_time_ms:
        fields["event_time_ms"] = message.event_time_ms
    key = message.given_key
    if isinstance(key, bytes):
        del fields["key"]
        fields["key_base64"] = base64.b64encode(key).decode()
    elif not message.is_null_key:
        fields["key"] = key
    if message.ordering_key is not None:
        fields["ordering_key_base64"] = base64.b64encode(message.ordering_key).decode()
    fields |= _payload_fields(message, as_is=as_is)
    return json.dumps(fields, default=_plain)


def _payload_fields(message: Message[object], *, as_is: bool) -> dict[str, object]:
    if message.is_null:
        return {"payload": None}
    is_readable, value = (False, None) if as_is else _value_of(message)
    if is_readable:
        return {"value": value}
    try:
        return {"payload": message.data.decode()}
    except UnicodeDecodeError:
        return {"payload_base64": base64.b64encode(message.data).decode()}


def text_of_message(message: Message[object], *, as_is: bool) -> str:
    """Return the payload as text for people; JSON, if the topic's schema decodes it to another
    type."""
    return bytes_of_message(message, as_is=as_is).decode(errors="replace")


def bytes_of_message(message: Message[object], *, as_is: bool) -> bytes:
    """Return the payload unchanged, or as text or JSON the value that the topic's schema
    decodes."""
    is_readable, value = (False, None) if as_is or message.is_null else _value_of(message)
    if not is_readable:
        return message.data
    text = value if isinstance(value, str) else json.dumps(value, default=_plain)
    return text.encode(errors="replace")


def _value_of(message: Message[object]) -> tuple[bool, object]:
    """Return whether the topic's schema decodes the payload to something that JSON can show, and
    the value."""
    if not message.schema_version:
        return False, None
    try:
        value = message.value()
        if isinstance(value, bytes | bytearray):
            return False, None
        json.dumps(value, default=_plain)
    except (SchemaError, TypeError, ValueError):
        return False, None  # the bytes are shown
    return True, value


def _plain(value: object) -> object:
    """Convert a value that JSON lacks, for `json.dumps`: in the form of Avro's JSON."""
    if isinstance(value, bytes | bytearray):
        return bytes(value).decode("latin-1")
    if isinstance(value, datetime | date | time):
        return value.isoformat()
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, Decimal | UUID):
        return str(value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {each.name: getattr(value, each.name) for each in dataclasses.fields(value)}
    raise TypeError(f"no JSON for {type(value).__name__}")
