"""What the broker looks at in an entry."""

from typing import Any

import pytest

from magnetar.broker.base.entry import (
    MARKER,
    admit,
    last_batch_index_of,
    messages_in,
    messages_of,
    publish_time_ms_of,
)
from magnetar.broker.base.errors import MessageChecksumError
from magnetar.sdk.wire import MESSAGES_PER_ENTRY_MAX, checksum
from tests.unit.broker.harness import entry

_BATCH_OF_THREE = bytes.fromhex(
    "0e012856086b000000150a0866616b652d302d30100018"
    "94f5eddd9f345803000000041802400" + "06d30000000041802400" + "16d31000000041802400" + "26d32"
)


def _messages_admitted(stored: bytes) -> int:
    metadata = admit(stored)
    return 1 if metadata is None else messages_in(metadata)


@pytest.mark.parametrize(
    ("stored", "messages", "index"),
    [
        (entry(), 1, -1),
        (entry(num_messages_in_batch=1), 1, 0),
        (entry(num_messages_in_batch=7), 7, 6),
        (entry()[6:], 1, -1),
        (entry(num_messages_in_batch=7)[6:], 7, 6),
        (entry(num_messages_in_batch=-5), 1, 0),
        (entry(num_messages_in_batch=1 << 30), MESSAGES_PER_ENTRY_MAX, (1 << 30) - 1),
        (entry(marker_type=20), MARKER, -1),
    ],
)
def test_messages_in_an_entry(stored: bytes, messages: int, index: int) -> None:
    assert _messages_admitted(stored) == messages_of(stored) == messages
    assert last_batch_index_of(stored) == index


@pytest.mark.parametrize("fields", [{}, {"partition_key": "k"}])
@pytest.mark.parametrize("hashes", [(0, 0), (88, 160), (65_535, 65_535)])
def test_the_range_of_hashes_that_clients_of_pulsar_5_send_costs_no_parsing(
    hashes: tuple[int, int], fields: dict[str, Any]
) -> None:
    low, high = hashes
    stored = entry(entry_hash_min=low, entry_hash_max=high, **fields)
    assert admit(stored) is None
    assert messages_of(stored) == 1
    assert admit(entry(entry_hash_min=low, num_messages_in_batch=3)) is not None


def test_a_recorded_batch_of_the_official_client() -> None:
    assert _messages_admitted(_BATCH_OF_THREE) == 3
    assert last_batch_index_of(_BATCH_OF_THREE) == 2


def test_the_publish_time() -> None:
    assert publish_time_ms_of(entry(publish_time=1234)) == 1234
    assert publish_time_ms_of(entry(publish_time=0)) == 0


@pytest.mark.parametrize("unreadable", [b"nonsense", b"", b"\0\0\0\0", entry()[:12]])
def test_a_publish_time_that_cannot_be_read_is_none_rather_than_1970(unreadable: bytes) -> None:
    assert publish_time_ms_of(unreadable) is None


def test_one_flipped_bit_is_noticed() -> None:
    good = entry(b"some body")
    for at in range(2, len(good)):
        bad = bytearray(good)
        bad[at] ^= 0x40
        with pytest.raises(MessageChecksumError):
            admit(bytes(bad))


def _checked(rest: bytes) -> bytes:
    return b"\x0e\x01" + checksum(rest).to_bytes(4, "big") + rest


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"\x0e\x01",
        b"\x0e\x01" + bytes(4),
        _checked(b"\x00\x00\xff\xffabc"),
        _checked(b"\x00\x00\x00\x08" + b"\xff" * 8),
        _checked(bytes(4) + b"no metadata at all"),
        b"\x00\x00\xff\xffabc",
    ],
)
def test_what_has_no_metadata_is_refused(payload: bytes) -> None:
    with pytest.raises(MessageChecksumError):
        admit(payload)
    assert messages_of(payload) == 1
    assert last_batch_index_of(payload) == -1
