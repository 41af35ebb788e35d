"""Durations, sizes, moments and message ids, as people write them on a command line. Pure.

| what | examples |
|---|---|
| duration | `90s`, `250ms`, `1h30m`, `3d`, `2w` |
| size | `10G`, `512MiB`, `64k`, `1048576`: multiples of 1024, as `pulsar-admin` takes them |
| moment | `-1h`, `1h ago`, `now`, `2026-11-26T23:00`, `2026-11-26`, ms since 1970 |
| message id | `LEDGER:ENTRY`, `LEDGER:ENTRY:PARTITION`, `LEDGER:ENTRY:PARTITION:INDEX` |

A moment without a time zone is local time.
"""

import math
import re
from datetime import datetime

from magnetar.deploy.errors import SettingsError

DURATION_HELP = "90s, 15m, 1h30m or 3d"
SIZE_HELP = "10G, 512M or 64k"
MOMENT_HELP = "-1h, 2026-11-26T23:00, or ms since 1970"

_UNIT_MS = {
    "ms": 1,
    "s": 1_000,
    "m": 60_000,
    "h": 3_600_000,
    "d": 86_400_000,
    "w": 604_800_000,
}
_PIECE = re.compile(r"(\d+(?:\.\d+)?)(ms|[smhdw])")
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([kmgtp]?)(?:i?b)?", re.IGNORECASE)
_SCALE = {"": 0, "k": 10, "m": 20, "g": 30, "t": 40, "p": 50}
_MS_SINCE_1970 = re.compile(r"\d{11,16}")
"""Form of a time in ms. Fewer digits could mean seconds, or a year: a guess would be wrong by a
factor of a thousand."""
_ID_DIGITS_MAX = 19
"""Digits of the largest int64."""


def parse_duration_ms(text: str) -> int | None:
    """Return a duration in ms, rounded; None if the text is not a duration.

    A number without a unit is not a duration, except 0.
    """
    text = text.strip().lower().replace(" ", "")
    if text == "0":
        return 0
    total, at = 0.0, 0
    for piece in _PIECE.finditer(text):
        if piece.start() != at:
            return None
        total += float(piece[1]) * _UNIT_MS[piece[2]]
        at = piece.end()
    return _rounded(total) if at == len(text) and at else None


def duration_ms(option: str, text: str) -> int:
    """Parse the duration of an option, in ms.

    Raises:
        SettingsError: the text is not a duration.
    """
    found = parse_duration_ms(text)
    if found is None:
        raise SettingsError(f"bad {option} {text!r}: give a duration, as {DURATION_HELP}")
    return found


def parse_size_bytes(text: str) -> int | None:
    """Return a size in bytes; None if the text is not a size."""
    match = _SIZE.fullmatch(text.strip())
    return None if match is None else _rounded(float(match[1]) * (1 << _SCALE[match[2].lower()]))


def _rounded(number: float) -> int | None:
    """Round a number; None if it has hundreds of digits, more than a float can hold."""
    return round(number) if math.isfinite(number) else None


def moment_ms(option: str, text: str, *, now_ms: int) -> int:
    """Parse a moment, in ms since 1970.

    Raises:
        SettingsError: the text is not a moment.
    """
    found = parse_moment_ms(text, now_ms=now_ms)
    if found is None:
        raise SettingsError(f"bad {option} {text!r}: give {MOMENT_HELP}")
    return found


def parse_moment_ms(text: str, *, now_ms: int) -> int | None:
    """Return a moment in ms since 1970, at least 0; None if the text is not a moment."""
    text = text.strip()
    if text == "now":
        return now_ms
    before = text.removeprefix("-") if text.startswith("-") else text.removesuffix(" ago")
    if before != text:
        past = parse_duration_ms(before)
        return None if past is None else max(0, now_ms - past)
    if text == "0" or _MS_SINCE_1970.fullmatch(text):
        return int(text)
    if text.isdecimal():
        return None
    try:
        return max(0, round(datetime.fromisoformat(text).timestamp() * 1000))
    except (ValueError, OverflowError, OSError):
        return None


def parse_message_id(text: str) -> tuple[int, int, int, int] | None:
    """Parse an id as the tools print it. Return ledger, entry, partition and batch index, where -1
    means none; None if the text is not an id."""
    parts = text.split(":")
    if any(len(part) > _ID_DIGITS_MAX for part in parts):
        return None
    if not 2 <= len(parts) <= 4 or not all(part.isdecimal() for part in parts[:2]):
        return None
    if not all(part.isdecimal() or part == "-1" for part in parts[2:]):
        return None
    ledger, entry, partition, index = (int(part) for part in (*parts, "-1", "-1")[:4])
    return ledger, entry, partition, index
