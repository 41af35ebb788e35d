"""Messages in an entry: round trip, and arbitrary bytes give messages or our error."""

from hypothesis import given
from hypothesis import strategies as st

from magnetar.ledger.errors import UnknownMessageFormatError
from magnetar.ledger.log_message import Message, decode_messages, encode_messages

headers = st.lists(st.tuples(st.text(max_size=5), st.binary(max_size=5)), max_size=3).map(tuple)
messages = st.builds(
    Message, st.binary(max_size=300), key=st.none() | st.binary(max_size=5), headers=headers
)


@given(st.lists(messages, min_size=1, max_size=5))
def test_messages_round_trip(batch: list[Message]) -> None:
    assert decode_messages(encode_messages(batch)) == batch


def encodes_to_itself(entry: bytes) -> bool:
    """Whether it is refused, or is the only encoding of what it says."""
    try:
        batch = decode_messages(entry)
    except UnknownMessageFormatError:
        return True
    has_ignored_attribute = any(byte & 0xF0 for byte in entry)
    return encode_messages(batch) == entry or has_ignored_attribute


@given(st.binary(max_size=40) | st.binary(max_size=40).map(lambda tail: b"\xd1\x03" + tail))
def test_arbitrary_bytes_are_refused_or_mean_one_thing(entry: bytes) -> None:
    assert encodes_to_itself(entry)


@given(st.lists(messages, min_size=1, max_size=3), st.data())
def test_a_changed_byte_is_refused_or_means_one_thing(
    batch: list[Message], data: st.DataObject
) -> None:
    entry = bytearray(encode_messages(batch))
    at = data.draw(st.integers(0, len(entry) - 1))
    entry[at] = data.draw(st.integers(0, 255))
    assert encodes_to_itself(bytes(entry))
