"""Message ids: order, bytes, text."""

import pytest

from magnetar.sdk.message_id import MessageId
from magnetar.sdk.wire import MalformedPayloadError


def test_ids_are_ordered_as_messages_are() -> None:
    ids = [
        MessageId.EARLIEST,
        MessageId(0, 5),
        MessageId(1, 0),
        MessageId(1, 1, -1),
        MessageId(1, 1, 0),
        MessageId(1, 1, 1),
        MessageId(1, 2),
        MessageId.LATEST,
    ]
    shuffled = [ids[at] for at in (3, 0, 7, 5, 1, 6, 2, 4)]
    assert sorted(shuffled) == ids


def test_batch_size_does_not_tell_ids_apart() -> None:
    assert MessageId(1, 2, 3, -1, 10) == MessageId(1, 2, 3)
    assert hash(MessageId(1, 2, 3, -1, 10)) == hash(MessageId(1, 2, 3))


@pytest.mark.parametrize(
    "message_id",
    [MessageId.EARLIEST, MessageId.LATEST, MessageId(7, 8, 9, 1, 10), MessageId(0, 0)],
)
def test_bytes_come_back(message_id: MessageId) -> None:
    decoded = MessageId.from_bytes(message_id.to_bytes())
    assert decoded == message_id
    assert decoded.batch_size == message_id.batch_size


@pytest.mark.parametrize("data", [b"", b"\x08\x01", b"\xff"])
def test_other_bytes_are_refused(data: bytes) -> None:
    with pytest.raises(MalformedPayloadError):
        MessageId.from_bytes(data)


def test_entry_of_an_id_in_a_batch() -> None:
    assert MessageId(1, 2, 3, 4, 5).entry == MessageId(1, 2, -1, 4)
    assert str(MessageId(1, 2)) == "1:2"
    assert str(MessageId(1, 2, 3)) == "1:2:-1:3"
