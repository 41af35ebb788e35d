"""Messages in an entry: bytes as documented, bounds, and what is refused."""

import pytest

from magnetar.ledger.errors import MessageTooLargeError, UnknownMessageFormatError
from magnetar.ledger.log_message import (
    ENTRY_BYTES_MAX,
    HEADERS_MAX,
    KEY_BYTES_MAX,
    MESSAGES_MAX,
    Message,
    MessageId,
    decode_messages,
    encode_messages,
)
from magnetar.ledger.position import Position


def test_the_bytes_are_those_of_the_format_page() -> None:
    entry = encode_messages(
        [
            Message(b"first"),
            Message(b"p" * 200, key=b"k", headers=(("name", b"value"), ("", b""))),
            Message(b"", key=b""),
        ]
    )
    assert entry == (
        b"\xd1\x00\x05first"
        + b"\xd1\x03\x01k\xc8\x01"
        + b"p" * 200
        + b"\x02\x04name\x05value\x00\x00"
        + b"\xd1\x01\x00\x00"
    )


def test_an_empty_key_is_not_the_same_as_none() -> None:
    messages = [Message(b"x", key=b""), Message(b"x")]
    assert decode_messages(encode_messages(messages)) == messages


@pytest.mark.parametrize(
    "entry",
    [
        b"",
        b"\xd2\x00\x00",
        b"\xd1",
        b"\xd1\x00",
        b"\xd1\x00\x05firs",
        b"\xd1\x00\x80\x00",
        b"\xd1\x00\xff\xff\xff\xff\x7f",
        b"\xd1\x00\xff\xff\xff\xff\xff\x01",
        b"\xd1\x02\x00\x00",
        b"\xd1\x02\x00\x01\x01\xff\x00",
        b"\xd1\x00\x00\x00",
    ],
    ids=[
        "empty",
        "another magic",
        "no attributes",
        "no payload",
        "a payload cut off",
        "a length in more bytes than it needs",
        "a length beyond 32 bits",
        "a length in six bytes",
        "headers, but none",
        "a header key that is no text",
        "bytes behind the last message",
    ],
)
def test_what_is_no_message_is_refused(entry: bytes) -> None:
    with pytest.raises(UnknownMessageFormatError):
        decode_messages(entry)


@pytest.mark.parametrize("bit", [0x04, 0x08])
def test_an_attribute_that_must_be_known_is_refused(bit: int) -> None:
    with pytest.raises(UnknownMessageFormatError, match="newer release"):
        decode_messages(bytes((0xD1, bit, 0)))


@pytest.mark.parametrize("bit", [0x10, 0x20, 0x40, 0x80])
def test_any_other_unknown_attribute_is_ignored(bit: int) -> None:
    assert decode_messages(bytes((0xD1, bit, 1)) + b"x") == [Message(b"x")]


def test_a_bad_message_takes_its_whole_entry_along() -> None:
    with pytest.raises(UnknownMessageFormatError, match="at byte 4"):
        decode_messages(encode_messages([Message(b"x")]) + b"\x00")


def test_bounds_are_kept_at_the_limit_and_one_beyond() -> None:
    full = [Message(b"")] * MESSAGES_MAX
    assert len(decode_messages(encode_messages(full))) == MESSAGES_MAX
    with pytest.raises(MessageTooLargeError):
        encode_messages([*full, Message(b"")])
    with pytest.raises(UnknownMessageFormatError):
        decode_messages(encode_messages(full) + b"\xd1\x00\x00")

    key = Message(b"", key=b"k" * KEY_BYTES_MAX)
    assert decode_messages(encode_messages([key])) == [key]
    with pytest.raises(MessageTooLargeError):
        encode_messages([Message(b"", key=b"k" * (KEY_BYTES_MAX + 1))])

    headers = Message(b"", headers=(("h", b""),) * HEADERS_MAX)
    assert decode_messages(encode_messages([headers])) == [headers]
    with pytest.raises(MessageTooLargeError):
        encode_messages([Message(b"", headers=(("h", b""),) * (HEADERS_MAX + 1))])

    largest = Message(b"p" * (ENTRY_BYTES_MAX - 6))
    assert decode_messages(encode_messages([largest])) == [largest]
    with pytest.raises(MessageTooLargeError, match="append fewer"):
        encode_messages([Message(b"p" * (ENTRY_BYTES_MAX - 5))])
    with pytest.raises(ValueError, match="at least one"):
        encode_messages([])


def test_ids_compare_in_log_order() -> None:
    ids = [MessageId(3, 9, 1), MessageId(4, 0, 0), MessageId(3, 10, 0), MessageId(3, 9, 0)]
    assert [str(each) for each in sorted(ids)] == ["3:9:0", "3:9:1", "3:10:0", "4:0:0"]
    assert MessageId(3, 9, 1).position == Position(3, 9)
