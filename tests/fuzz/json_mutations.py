"""Ways to spoil a JSON value. All chance comes from the random source that is passed in."""

import json
import random
from collections.abc import Callable, Sequence

ODD_VALUES: tuple[object, ...] = (
    *(None, True, False, 0, -1, 1 << 31, 1 << 62, 1 << 64, 1.5, -0.0, float("nan"), float("inf")),
    *("", ".", "..", "a b", "\ud800", "\x00", "ü", "%2e", "0x00000000_0xffffffff", "x" * 3000),
    *([], {}, [[]], [None], {"": None}, {"a": {"b": []}}, ["a", "a"], [1, "a", None]),
)
_DEPTH_MAX = 3_000


def spoil_json(
    chance: random.Random,
    value: object,
    *,
    other: Callable[[random.Random], object] = lambda chance: chance.choice(ODD_VALUES),
    names: Sequence[str] = ("", "name", "type"),
) -> object:
    """Copy a JSON value with something wrong in one place: `other` says what may be there instead,
    and `names` what a field may be called that is added."""
    if isinstance(value, dict) and value and chance.random() < 0.8:
        name = chance.choice((*value, *(names if chance.random() < 0.3 else ())))
        return {**value, name: spoil_json(chance, value.get(name), other=other, names=names)}
    if isinstance(value, list) and value and chance.random() < 0.8:
        at = chance.randrange(len(value))
        spoiled = spoil_json(chance, value[at], other=other, names=names)
        return [*value[:at], spoiled, *value[at + 1 :]]
    return other(chance)


def spoil_text(chance: random.Random, data: bytes) -> bytes:
    """JSON as it is written, with something wrong in it; nesting without end now and then."""
    if chance.random() < 0.02:
        return chance.choice((b"[", b'{"a":', b"[{")) * chance.randrange(1, _DEPTH_MAX)
    spoiled = bytearray(data)
    for _ in range(chance.choice((1, 1, 5))):
        at = chance.randrange(len(spoiled) + 1)
        match chance.randrange(3):
            case 0:
                spoiled[at : at + 1] = chance.randbytes(1)
            case 1:
                del spoiled[at : at + chance.randrange(10)]
            case _:
                spoiled[at:at] = chance.choice((b'"', b"{", b"}", b",", b"\\u", b"\xff", b"0"))
    return bytes(spoiled)


def text_of(value: object) -> bytes:
    """JSON, also of what JSON has no words for (NaN), as careless clients write it."""
    return json.dumps(value).encode()
