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


@pytest.mark.parametrize("size", range(14))
def test_a_prefix_changes_nothing(size: int) -> None:
    text = bytes(range(100, 100 + size))
    for whole in range(0, size + 1, 4):
        assert murmur3_32(text[whole:], text[:whole]) == murmur3_32(text)


def test_long_texts_are_hashed_too() -> None:
    text = bytes(range(256)) * 8
    assert murmur3_32(text) == murmur3_32(text[1024:], text[:1024])
