"""Murmur3, against the vectors of the protocol sheet."""

import pytest

from magnetar.broker.hashing import murmur3_32, murmur31


@pytest.mark.parametrize(
    ("key", "raw", "positive"),
    [
        ("", 0x00000000, 0),
        ("k1", 0xFDC6602A, 2110152746),
        ("key1", 0x9B970125, 462881061),
        ("key2", 0x737139B4, 1936800180),
        ("hello", 0x248BFA47, 613153351),
        ("my-message-key", 0xEF98E190, 1872290192),
    ],
)
def test_known_hashes(key: str, raw: int, positive: int) -> None:
    assert murmur3_32(key.encode()) == raw
    assert murmur31(key.encode()) == positive
