r"""The text of `--format`: what is printed of a message. Pure.

| in the text | printed |
|---|---|
| `%v` | the value: the bytes of the payload, or as JSON what the topic's schema reads in them |
| `%k` | the key; nothing for a message without one |
| `%p`, `%p{NAME}` | all properties as a JSON object; one of them, nothing if the message lacks it |
| `%i` | the id of the message, as `--start` takes it |
| `%t` | the topic, of a partitioned topic the partition |
| `%T`, `%d` | the publish time in ms since 1970; as a date, in UTC |
| `%e` | the event time in ms since 1970; 0: none |
| `%%` | a percent sign |
| `\n`, `\t`, `\0`, `\\` | a line feed, a tabulator, a zero byte, a backslash |

A line feed follows each message, unless the text ends in one or in a zero byte.
"""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime

from magnetar.deploy.errors import SettingsError
from magnetar.deploy.message_lines import bytes_of_message
from magnetar.sdk.message import Message

Field = Callable[[Message[object], bool], bytes]
"""Makes the bytes of one placeholder, from a message and whether its payload is shown undecoded."""

_TOKEN = re.compile(
    r"%p\{(?P<property>[^}]+)\}|%(?P<field>.)|\\(?P<escape>.)|(?P<text>[^%\\]+)", re.DOTALL
)
_ESCAPES = {"n": b"\n", "t": b"\t", "0": b"\0", "\\": b"\\"}
_ENDS = (b"\n", b"\0")


def _key(message: Message[object]) -> bytes:
    return b"" if message.is_null_key else message.key_bytes or b""


def _date(milliseconds: int) -> str:
    """Return a time in ms since 1970 as ISO 8601, in UTC; times outside the calendar stay
    numbers."""
    try:
        moment = datetime.fromtimestamp(milliseconds / 1000, UTC)
    except (OverflowError, OSError, ValueError):
        return str(milliseconds)
    return moment.isoformat(timespec="milliseconds")


_FIELDS: Mapping[str, Field] = {
    "%": lambda _message, _as_is: b"%",
    "v": lambda message, as_is: bytes_of_message(message, as_is=as_is),
    "k": lambda message, _as_is: _key(message),
    "p": lambda message, _as_is: json.dumps(dict(message.properties)).encode(),
    "i": lambda message, _as_is: str(message.message_id).encode(),
    "t": lambda message, _as_is: message.topic.encode(),
    "T": lambda message, _as_is: str(message.publish_time_ms).encode(),
    "d": lambda message, _as_is: _date(message.publish_time_ms).encode(),
    "e": lambda message, _as_is: str(message.event_time_ms).encode(),
}


class MessageFormat:
    """A parsed text of `--format`."""

    def __init__(self, pieces: Sequence[bytes | Field]) -> None:
        self._pieces = pieces

    def bytes_of(self, message: Message[object], *, as_is: bool) -> bytes:
        """Return the bytes that are printed for a message."""
        return b"".join(
            each if isinstance(each, bytes) else each(message, as_is) for each in self._pieces
        )


def parse_format(text: str) -> MessageFormat:
    """Parse the text of `--format`.

    Raises:
        SettingsError: the text has an unknown placeholder or escape, or ends in the middle of one.
    """
    pieces: list[bytes | Field] = []
    at = 0
    while at < len(text):
        token = _TOKEN.match(text, at)
        if token is None:
            raise SettingsError(f"bad --format {text!r}: {text[at]!r} at its end; double it")
        pieces.append(_piece(token))
        at = token.end()
    last = pieces[-1] if pieces else b""
    if not (isinstance(last, bytes) and last.endswith(_ENDS)):
        pieces.append(b"\n")
    return MessageFormat(pieces)


def _piece(token: re.Match[str]) -> bytes | Field:
    if name := token["property"]:
        return lambda message, _as_is: message.properties.get(name, "").encode()
    if token["text"]:
        # Command line bytes that are not UTF-8 are kept.
        return token["text"].encode(errors="surrogateescape")
    known = _FIELDS if token["field"] else _ESCAPES
    found = known.get(token["field"] or token["escape"])
    if found is None:
        names = ", ".join(f"{token[0][0]}{each}" for each in known)
        raise SettingsError(f"bad --format: unknown {token[0]!r}; known are {names}")
    return found
