"""Any bytes as an entry give a number of messages or one of our errors."""

from hypothesis import given
from hypothesis import strategies as st

from magnetar.broker.base.chunks import chunks_of
from magnetar.broker.base.entry import (
    admit,
    last_batch_index_of,
    look_through,
    messages_in,
    messages_of,
    publish_time_ms_of,
)
from magnetar.broker.base.errors import MessageChecksumError
from magnetar.sdk.wire import MESSAGES_PER_ENTRY_MAX, MessageMetadata, encode_payload

_NOISE = st.binary(max_size=200) | st.binary(max_size=100).map(lambda data: b"\x0e\x01" + data)


def _messages_admitted(data: bytes) -> int:
    metadata = admit(data)
    return 1 if metadata is None else messages_in(metadata)


def _sent(count: int | None, is_chunk: bool, has_checksum: bool) -> bytes:
    metadata = MessageMetadata(
        producer_name="p", sequence_id=1, publish_time=1, num_messages_in_batch=count
    )
    if is_chunk:
        metadata.uuid, metadata.num_chunks_from_msg, metadata.chunk_id = "u", 2, 1
    entry = encode_payload(metadata.SerializeToString(), b"body")
    return entry if has_checksum else entry[6:]


@given(_NOISE)
def test_noise_never_breaks_anything(data: bytes) -> None:
    assert 0 <= messages_of(data) <= MESSAGES_PER_ENTRY_MAX
    assert last_batch_index_of(data) >= -1
    published_ms = publish_time_ms_of(data)
    assert published_ms is None or published_ms >= 0
    try:
        assert _messages_admitted(data) == messages_of(data)
    except MessageChecksumError:
        pass


@given(
    count=st.none() | st.integers(-(2**31), 2**31 - 1),
    sequence_id=st.integers(0, 2**64 - 1),
    body=st.binary(max_size=100),
    has_checksum=st.booleans(),
)
def test_what_a_client_sends_is_admitted(
    count: int | None, sequence_id: int, body: bytes, has_checksum: bool
) -> None:
    metadata = MessageMetadata(
        producer_name="p", sequence_id=sequence_id, publish_time=1, num_messages_in_batch=count
    )
    entry = encode_payload(metadata.SerializeToString(), body)
    if not has_checksum:
        entry = entry[6:]
    assert (
        _messages_admitted(entry)
        == messages_of(entry)
        == min(max(1, count or 1), MESSAGES_PER_ENTRY_MAX)
    )


@given(
    st.lists(_NOISE | st.builds(_sent, st.none() | st.integers(0, 9), st.booleans(), st.booleans()))
)
def test_a_look_through_many_finds_what_a_look_at_each_does(entries: list[bytes]) -> None:
    counts, maybe_chunks = look_through(entries)
    assert counts == [messages_of(each) for each in entries]
    chunks = chunks_of(entries, range(len(entries)))
    assert chunks_of(entries, maybe_chunks) == chunks
