"""Encoding of ledger states in an index. Pure. Layout: docs/formats/index.md."""

from struct import Struct

from magnetar.bookie.errors import StorageCorruptError
from magnetar.bookie.storage import LedgerState
from magnetar.ledger.wire_bodies import LAC_PACKET_HEADER

# Stored on disk: never renumber.
_VERSION = 2
_FENCED = 1
_LIMBO = 2

_HEAD = Struct(">BBqB")


def encode_state(state: LedgerState) -> bytes:
    """Encode a state: version, flags, LAC, length of the key, key, LAC packet."""
    flags = (_FENCED if state.fenced else 0) | (_LIMBO if state.limbo else 0)
    head = _HEAD.pack(_VERSION, flags, state.last_add_confirmed, len(state.master_key))
    return b"".join((head, state.master_key, state.explicit_lac))


def check_state(value: bytes) -> None:
    """Check an encoded state without decoding it: at start there may be a million of them.

    Raises:
        StorageCorruptError: truncated, or of an unknown version.
    """
    if len(value) < _HEAD.size:
        raise StorageCorruptError(f"index: ledger state of {len(value)} bytes")
    version, flags, _, key_bytes = _HEAD.unpack_from(value)
    if version != _VERSION or flags > (_FENCED | _LIMBO):
        # An unknown flag may be a promise, as `fenced` is: it must not be dropped.
        raise StorageCorruptError(f"index: ledger state of version {version}, flags {flags:#x}")
    key_end = _HEAD.size + int(key_bytes)
    if len(value) < key_end:
        raise StorageCorruptError(f"index: ledger state of {len(value)} bytes is truncated")
    if 0 < len(value) - key_end < LAC_PACKET_HEADER.size:
        raise StorageCorruptError(f"index: LAC packet of {len(value) - key_end} bytes")


def decode_state(value: bytes) -> LedgerState:
    """Decode a ledger state.

    Raises:
        StorageCorruptError: truncated, or of an unknown version.
    """
    check_state(value)
    _, flags, last_add_confirmed, key_bytes = _HEAD.unpack_from(value)
    key_end = _HEAD.size + key_bytes
    return LedgerState(
        master_key=value[_HEAD.size : key_end],
        fenced=bool(flags & _FENCED),
        last_add_confirmed=last_add_confirmed,
        explicit_lac=value[key_end:],
        limbo=bool(flags & _LIMBO),
    )
