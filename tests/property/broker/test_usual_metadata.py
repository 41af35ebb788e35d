"""A message that is found to be a usual one is what protobuf says, for whatever bytes come."""

from hypothesis import example, given
from hypothesis import strategies as st

from magnetar.broker.base.entry import admit, messages_in, metadata_of
from magnetar.broker.base.errors import MessageChecksumError
from magnetar.sdk.wire import MessageMetadata, checksum
from tests.property.sdk.wire.test_hot_parsing import spoiled

_USUAL = {"producer_name", "sequence_id", "publish_time", "partition_key", "uncompressed_size"}

numbers = st.integers(0, (1 << 64) - 1)
usual_numbers = st.integers(0, (1 << 63) - 1)
names = st.text(st.characters(min_codepoint=0x20, max_codepoint=0x7E), max_size=127)


@st.composite
def metadata(draw: st.DrawFn) -> MessageMetadata:
    made = MessageMetadata(
        producer_name=draw(st.text(max_size=150)),
        sequence_id=draw(numbers),
        publish_time=draw(numbers),
    )
    if draw(st.booleans()):
        made.uncompressed_size = draw(st.integers(0, (1 << 32) - 1))
    if draw(st.booleans()):
        made.partition_key = draw(st.text(max_size=5))
    if draw(st.booleans()):
        made.num_messages_in_batch = draw(st.integers(-1, 10))
    if draw(st.booleans()):
        made.deliver_at_time = draw(st.integers(0, 1 << 40))
    if draw(st.booleans()):
        made.marker_type = draw(st.integers(0, 30))
    return made


def entry_of(raw: bytes, body: bytes = b"body") -> bytes:
    rest = len(raw).to_bytes(4, "big") + raw + body
    return b"\x0e\x01" + checksum(rest).to_bytes(4, "big") + rest


@given(metadata().map(lambda each: each.SerializePartialToString()).flatmap(spoiled))
@example(b"\x0a\x05p\x10\x01\x18\x02")
@example(b"\x0a\x01p\x10\x01\x18\x02\x32\x02kH\x01")
@example(b"\x0a\x01p\x10\x01\x18\x02\x32\x05k")
@example(b"\x0a\x01p\x10\x01\x18" + b"\x80" * 9 + b"\x01")
def test_what_is_found_usual_has_the_usual_fields_and_no_other(raw: bytes) -> None:
    entry = entry_of(raw)
    try:
        if admit(entry) is not None:
            return
    except MessageChecksumError:
        return
    found = metadata_of(entry)
    assert found.IsInitialized()
    assert {field.name for field, _ in found.ListFields()} <= _USUAL
    assert found.num_chunks_from_msg <= 1
    assert messages_in(found) == 1


@given(names, usual_numbers, usual_numbers, st.none() | names)
def test_every_usual_message_is_found_to_be_one(
    name: str, sequence_id: int, publish_time: int, key: str | None
) -> None:
    made = MessageMetadata(
        producer_name=name,
        sequence_id=sequence_id,
        publish_time=publish_time,
        partition_key=key,
    )
    assert admit(entry_of(made.SerializeToString())) is None
