"""Ways to spoil a frame. All chance comes from the random source that is passed in."""

import random

from magnetar.ledger.wire import FRAME_BYTES_MAX, HEADER_BYTES, RESPONSE

INT64_EDGES = (-(1 << 63), -2, -1, 0, 1, (1 << 31) - 1, 1 << 32, (1 << 63) - 2, (1 << 63) - 1)
_LENGTHS = (0, 1, 29, 30, 31, FRAME_BYTES_MAX, FRAME_BYTES_MAX + 1, (1 << 31) - 1, (1 << 32) - 1)
# Where the fields of the header lie: docs/formats/bookie-frame.md.
_LENGTH, _MAGIC, _VERSION, _OP, _FLAGS, _STATUS = 0, 4, 6, 7, 8, 9
_REQUEST_ID, _LEDGER_ID, _ENTRY_ID = 10, 18, 26


def flip_bits(data: bytes, source: random.Random) -> bytes:
    """One to four bytes changed, anywhere."""
    spoiled = bytearray(data)
    for _ in range(source.randint(1, 4)):
        spoiled[source.randrange(len(spoiled))] ^= source.randint(1, 255)
    return bytes(spoiled)


def lie_about_length(data: bytes, source: random.Random) -> bytes:
    """The length field says something else; what follows stays."""
    true = len(data) - 4
    length = source.choice((*_LENGTHS, true - 1, true + 1, source.getrandbits(32)))
    return max(0, length).to_bytes(4, "big") + data[4:]


def cut_short(data: bytes, source: random.Random) -> bytes:
    """The end of the frame is missing, so that what comes next is taken for it."""
    return data[: source.randrange(len(data))]


def other_protocol(data: bytes, source: random.Random) -> bytes:
    at = source.choice((_MAGIC, _MAGIC + 1, _VERSION))
    return data[:at] + bytes([source.getrandbits(8)]) + data[at + 1 :]


def other_operation(data: bytes, source: random.Random) -> bytes:
    return _with_byte(data, _OP, source.getrandbits(8))


def response_bit(data: bytes, source: random.Random) -> bytes:
    return _with_byte(data, _OP, data[_OP] ^ RESPONSE)


def other_flags(data: bytes, source: random.Random) -> bytes:
    return _with_byte(data, _FLAGS, source.choice((1, 2, 3, 4, 8, 10, source.getrandbits(8))))


def other_status(data: bytes, source: random.Random) -> bytes:
    return _with_byte(data, _STATUS, source.choice((*range(12), source.getrandbits(8))))


def other_request_id(data: bytes, source: random.Random) -> bytes:
    number: int = source.choice((0, 1, 2, 1 << 63, source.randrange(200)))
    return data[:_REQUEST_ID] + number.to_bytes(8, "big") + data[_LEDGER_ID:]


def other_ledger_id(data: bytes, source: random.Random) -> bytes:
    number: int = source.choice((*INT64_EDGES, *range(6)))
    return data[:_LEDGER_ID] + number.to_bytes(8, "big", signed=True) + data[_ENTRY_ID:]


def other_entry_id(data: bytes, source: random.Random) -> bytes:
    number: int = source.choice((*INT64_EDGES, *range(20)))
    return data[:_ENTRY_ID] + number.to_bytes(8, "big", signed=True) + data[HEADER_BYTES:]


def longer_body(data: bytes, source: random.Random) -> bytes:
    """Bytes behind the body, with a length that fits."""
    return _with_body(data, data[HEADER_BYTES:] + source.randbytes(source.randint(1, 60)))


def shorter_body(data: bytes, source: random.Random) -> bytes:
    """The body cut, with a length that fits."""
    body = data[HEADER_BYTES:]
    return _with_body(data, body[: source.randrange(len(body) + 1)])


def random_body(data: bytes, source: random.Random) -> bytes:
    return _with_body(data, source.randbytes(source.randrange(120)))


def spoiled_body(data: bytes, source: random.Random) -> bytes:
    """Counts, lengths, packet headers, keys and digests that lie."""
    body = data[HEADER_BYTES:]
    if not body:
        return random_body(data, source)
    at = source.randrange(len(body))
    word = source.choice((0, 1, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF, source.getrandbits(32)))
    value = word.to_bytes(4, "big") if source.random() < 0.5 else bytes([word & 0xFF])
    return _with_body(data, (body[:at] + value + body[at + len(value) :])[: len(body)])


def twice(data: bytes, source: random.Random) -> bytes:
    return data + data


def garbage(data: bytes, source: random.Random) -> bytes:
    """Nothing of the frame is left."""
    return source.randbytes(source.randrange(1, 200))


def zeros(data: bytes, source: random.Random) -> bytes:
    return bytes(source.randrange(1, 100))


BREAKING = (lie_about_length, cut_short, other_protocol, garbage, zeros)
"""The rest of the stream cannot be trusted after these."""

FRAMED = (
    flip_bits,
    other_operation,
    response_bit,
    other_flags,
    other_status,
    other_request_id,
    other_ledger_id,
    other_entry_id,
    longer_body,
    shorter_body,
    random_body,
    spoiled_body,
    twice,
)
"""Still frames, mostly."""


def _with_byte(data: bytes, at: int, value: int) -> bytes:
    return data[:at] + bytes([value]) + data[at + 1 :]


def _with_body(data: bytes, body: bytes) -> bytes:
    return (HEADER_BYTES - 4 + len(body)).to_bytes(4, "big") + data[4:HEADER_BYTES] + body
