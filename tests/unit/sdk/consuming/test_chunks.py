"""Messages in chunks: put together in order, bounded, given up when a part is missing."""

import struct

import pytest

from magnetar.sdk.batch import EntrySource, MessageBatch
from magnetar.sdk.consuming.chunks import ChunkAssembly
from magnetar.sdk.errors import CorruptMessageError
from magnetar.sdk.message_id import MessageId
from magnetar.sdk.wire.errors import MalformedPayloadError
from magnetar.sdk.wire.pulsar_pb2 import MessageMetadata

SOURCE = EntrySource("persistent://public/default/t")


def chunk(
    entry: int,
    uuid: str,
    index: int,
    of: int,
    body: bytes = b"ab",
    size: int | None = None,
    publish_time_ms: int = 1,
) -> MessageBatch:
    metadata = MessageMetadata(
        producer_name="p",
        sequence_id=1,
        publish_time=publish_time_ms,
        uuid=uuid,
        chunk_id=index,
        num_chunks_from_msg=of,
        total_chunk_msg_size=len(body) * of if size is None else size,
    ).SerializeToString()
    return MessageBatch(struct.pack(">I", len(metadata)) + metadata + body, SOURCE, 1, entry)


class Assembly:
    """With what was given up and what was superseded."""

    def __init__(
        self, *, messages_max: int = 10, bytes_max: int = 1_000, tells_lost: bool = False
    ) -> None:
        self.given_up: list[list[tuple[int, int]]] = []
        self.superseded: list[list[tuple[int, int]]] = []
        self.repeated: list[tuple[tuple[int, int], tuple[int, int]]] = []
        self.chunks = ChunkAssembly(
            SOURCE,
            messages_max=messages_max,
            bytes_max=bytes_max,
            age_s=60.0,
            tells_lost=tells_lost,
            on_given_up=self.given_up.append,
            on_superseded=self.superseded.append,
            on_repeated=lambda last, entry: self.repeated.append((last, entry)),
        )

    def add(self, batch: MessageBatch) -> bytes | None:
        whole = self.chunks.add(batch)
        return None if whole is None else whole.batch.body()


def test_mixed_messages_become_whole() -> None:
    assembly = Assembly()
    assert assembly.add(chunk(0, "a", 0, 2, b"a0")) is None
    assert assembly.add(chunk(1, "b", 0, 2, b"b0")) is None
    assert assembly.chunks.bytes_held == 4
    assert assembly.add(chunk(2, "b", 1, 2, b"b1")) == b"b0b1"
    whole = assembly.chunks.add(chunk(3, "a", 1, 2, b"a1"))
    assert whole is not None
    assert whole.others == [(1, 0)]
    assert str(whole.batch.message_id) == "1:3"
    assert str(whole.batch.message_id.first_chunk) == "1:0"
    assert (len(assembly.chunks), assembly.chunks.bytes_held) == (0, 0)
    assert assembly.given_up == []


def test_a_missing_chunk_gives_the_message_up() -> None:
    assembly = Assembly()
    assembly.add(chunk(0, "a", 0, 3))
    assert assembly.add(chunk(2, "a", 2, 3)) is None
    assert assembly.given_up == [[(1, 0)], [(1, 2)]]
    assert assembly.add(chunk(3, "b", 1, 2)) is None
    assert assembly.given_up[2:] == [[(1, 3)]]


def test_a_message_sent_again_begins_again() -> None:
    assembly = Assembly()
    assembly.add(chunk(0, "a", 0, 2))
    assembly.add(chunk(0, "a", 0, 2))  # delivered again: the same entry
    assert assembly.add(chunk(1, "a", 0, 2, b"cd")) is None
    assert assembly.add(chunk(2, "a", 1, 2, b"ef")) == b"cdef"
    assert (assembly.superseded, assembly.given_up) == ([[(1, 0)]], [])


def test_a_chunk_in_the_middle_that_was_stored_twice_is_passed_over() -> None:
    """A producer that lost its connection sends again the chunks that it has no receipt for."""
    assembly = Assembly()
    assembly.add(chunk(0, "a", 0, 3, b"ab"))
    assembly.add(chunk(1, "a", 1, 3, b"cd"))
    assert assembly.add(chunk(2, "a", 1, 3, b"cd")) is None
    assert assembly.add(chunk(3, "a", 2, 3, b"ef")) == b"abcdef"
    assert (assembly.superseded, assembly.given_up) == ([[(1, 2)]], [])


def test_a_chunk_that_was_stored_twice_shares_the_lot_of_its_whole_message() -> None:
    assembly = Assembly()
    assembly.add(chunk(0, "a", 0, 2, b"ab"))
    assert assembly.add(chunk(1, "a", 1, 2, b"cd")) == b"abcd"
    assert assembly.add(chunk(2, "a", 1, 2, b"cd")) is None
    assert (assembly.repeated, assembly.given_up) == ([((1, 1), (1, 2))], [])


def test_a_whole_message_that_comes_again_becomes_whole_again() -> None:
    assembly = Assembly()
    for _ in range(2):
        assembly.add(chunk(0, "a", 0, 2, b"ab"))
        assert assembly.add(chunk(1, "a", 1, 2, b"cd")) == b"abcd"
    assert (assembly.repeated, assembly.given_up) == ([], [])


def test_another_message_of_the_same_id_is_not_taken_for_what_was_stored_twice() -> None:
    """A producer that comes back under its name may count from the beginning."""
    assembly = Assembly()
    assembly.add(chunk(0, "a", 0, 2, b"ab"))
    assembly.add(chunk(1, "a", 1, 2, b"cd"))
    assembly.add(chunk(3, "a", 1, 2, b"gh", publish_time_ms=2))
    assert assembly.given_up == [[(1, 3)]]
    assembly.add(chunk(4, "a", 0, 2, b"ef", publish_time_ms=2))
    assert assembly.add(chunk(5, "a", 1, 2, b"gh", publish_time_ms=2)) == b"efgh"
    assert assembly.repeated == []


def test_nothing_is_known_of_what_became_whole_before_everything_comes_again() -> None:
    assembly = Assembly()
    assembly.add(chunk(0, "a", 0, 2))
    assembly.add(chunk(1, "a", 1, 2))
    assembly.chunks.clear()
    assembly.add(chunk(2, "a", 1, 2))
    assert (assembly.repeated, assembly.given_up) == ([], [[(1, 2)]])


def test_at_the_limit_the_oldest_is_given_up() -> None:
    assembly = Assembly(messages_max=2)
    for at, uuid in enumerate("abc"):
        assembly.add(chunk(at, uuid, 0, 2))
        assert len(assembly.chunks) == min(at + 1, 2)
    assert assembly.given_up == [[(1, 0)]]


def test_all_together_are_bounded_in_bytes() -> None:
    assembly = Assembly(bytes_max=10)
    assembly.add(chunk(0, "a", 0, 2, b"12345"))
    assembly.add(chunk(1, "b", 0, 2, b"12345"))
    assert assembly.given_up == []
    assembly.add(chunk(2, "c", 0, 2, b"1"))
    assert assembly.given_up == [[(1, 0)]]
    with pytest.raises(MalformedPayloadError, match="allowed are 10"):
        assembly.add(chunk(3, "d", 0, 2, size=11))


@pytest.mark.parametrize(
    "bad", [chunk(0, "a", 2, 2), chunk(0, "a", -1, 2), chunk(0, "a", 0, 2, b"abc", size=2)]
)
def test_nonsense_is_an_error_and_holds_nothing(bad: MessageBatch) -> None:
    assembly = Assembly()
    with pytest.raises(MalformedPayloadError):
        assembly.add(bad)
    assert assembly.chunks.bytes_held == 0


def test_a_message_that_is_waited_for_too_long_is_given_up() -> None:
    assembly = Assembly()
    assembly.add(chunk(0, "a", 0, 3))
    assembly.chunks.wait(59.9)
    assembly.add(chunk(1, "b", 0, 3))
    assembly.add(chunk(2, "a", 1, 3))
    assembly.chunks.wait(59.9)
    assert assembly.given_up == []
    assembly.add(chunk(3, "a", 2, 3))
    assembly.chunks.wait(0.1)
    assert assembly.given_up == [[(1, 1)]]


def test_a_lost_message_is_reported_once_with_its_place_and_the_reason() -> None:
    assembly = Assembly(messages_max=1, bytes_max=7, tells_lost=True)
    reasons = []
    assembly.add(chunk(0, "a", 0, 3))
    assembly.add(chunk(1, "b", 0, 3))
    reasons.append(_reported(assembly, chunk(2, "a", 1, 3)))
    assembly.chunks.wait(60.0)
    reasons.append(_reported(assembly, chunk(3, "b", 1, 3)))
    assembly.add(chunk(4, "c", 0, 3))
    reasons.append(_reported(assembly, chunk(5, "c", 2, 3)))
    assert assembly.add(chunk(6, "a", 2, 3)) is None
    assert [str(each.message_id) for each in reasons] == ["1:2", "1:3", "1:5"]
    assert [each.message_id.first_chunk for each in reasons] == [
        MessageId(1, 0),
        MessageId(1, 1),
        MessageId(1, 4),
    ]
    for error, word in zip(
        reasons, ["chunked_messages_max", "chunked_message_age_ms", "missing"], strict=True
    ):
        assert word in str(error)


def test_a_message_given_up_for_its_bytes_is_reported() -> None:
    assembly = Assembly(bytes_max=7, tells_lost=True)
    assembly.add(chunk(0, "a", 0, 2, b"123"))
    assembly.add(chunk(1, "b", 0, 2, b"123"))
    assembly.add(chunk(2, "c", 0, 2, b"123"))
    assert "chunked_message_bytes_max" in str(_reported(assembly, chunk(3, "a", 1, 2, b"123")))


def test_chunks_without_a_beginning_are_no_lost_message() -> None:
    """A subscription may begin, or be moved, into the middle of a chunked message."""
    assembly = Assembly(tells_lost=True)
    assert assembly.add(chunk(1, "a", 1, 2)) is None
    assembly.add(chunk(2, "b", 0, 2))
    assembly.chunks.clear()
    assert assembly.add(chunk(3, "b", 1, 2)) is None


def test_a_lost_message_is_reported_although_the_consumer_attached_again_meanwhile() -> None:
    """A cumulative acknowledgement may have passed its beginning, which then never comes again."""
    assembly = Assembly(tells_lost=True)
    assembly.add(chunk(0, "a", 0, 2))
    assembly.chunks.wait(60.0)
    assembly.chunks.clear()
    error = _reported(assembly, chunk(2, "a", 1, 2))
    assert error.message_id.first_chunk == MessageId(1, 0)
    assert assembly.add(chunk(3, "a", 1, 2)) is None, "once"


def test_a_lost_message_that_comes_again_after_the_consumer_attached_again_is_whole() -> None:
    assembly = Assembly(tells_lost=True)
    assembly.add(chunk(0, "a", 0, 2, b"ab"))
    assembly.chunks.wait(60.0)
    assembly.chunks.clear()
    assert assembly.add(chunk(0, "a", 0, 2, b"ab")) is None
    assert assembly.add(chunk(1, "a", 1, 2, b"cd")) == b"abcd"


def test_a_lost_message_that_comes_again_is_whole() -> None:
    assembly = Assembly(tells_lost=True)
    assembly.add(chunk(0, "a", 0, 2, b"ab"))
    assembly.chunks.wait(60.0)
    assembly.add(chunk(1, "a", 0, 2, b"cd"))
    assert assembly.add(chunk(2, "a", 1, 2, b"ef")) == b"cdef"


def _reported(assembly: Assembly, batch: MessageBatch) -> CorruptMessageError:
    with pytest.raises(CorruptMessageError) as caught:
        assembly.add(batch)
    return caught.value


def test_an_incomplete_message_is_awaited_until_deliveries_have_passed_it() -> None:
    """When everything is redelivered, its place must not be acknowledged before it comes again."""
    assembly = Assembly()
    assembly.add(chunk(3, "a", 0, 2))
    assembly.add(chunk(5, "b", 0, 2))
    assembly.chunks.clear()
    assert assembly.chunks.first_incomplete == (1, 3)
    assembly.chunks.pass_entry((1, 2))
    assert assembly.chunks.first_incomplete == (1, 3)
    assembly.chunks.pass_entry((1, 4))
    assert assembly.chunks.first_incomplete == (1, 5)
    assembly.add(chunk(5, "b", 0, 2))
    assert assembly.add(chunk(6, "b", 1, 2)) is not None
    assert not assembly.chunks.is_under_way
