"""Keys are hashed as the official clients and brokers do it."""

import pytest

from magnetar.sdk.wire.key_hashes import java_string_hash, murmur3_hash


@pytest.mark.parametrize(
    ("key", "murmur3", "java"),
    [  # The fact sheet's vectors, taken from the official clients.
        ("", 0, 0),
        ("k1", 2110152746, 3366),
        ("key1", 462881061, 3288498),
        ("key2", 1936800180, 3288499),
        ("hello", 613153351, 99162322),
        ("my-message-key", 1872290192, 226145528),
    ],
)
def test_hashes_are_those_of_the_official_clients(key: str, murmur3: int, java: int) -> None:
    assert (murmur3_hash(key.encode()), java_string_hash(key)) == (murmur3, java)


def test_java_counts_in_utf_16() -> None:
    assert java_string_hash("ä") == 0xE4
    assert java_string_hash("\U0001f600") == (31 * 0xD83D + 0xDE00) & 0x7FFFFFFF


def test_a_hash_has_no_sign() -> None:
    # Java's is Integer.MIN_VALUE: only its sign bit is set.
    assert java_string_hash("polygenelubricants") == 0
    assert all(0 <= murmur3_hash(b"%d" % each) < 1 << 31 for each in range(100))


def test_half_a_pair_of_utf_16_is_hashed_too() -> None:
    assert java_string_hash("\ud83d") == 0xD83D
