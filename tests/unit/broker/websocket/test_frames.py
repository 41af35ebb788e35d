"""Times in the frames of messages, and ids in the frames of clients."""

import json

import pytest

from magnetar.broker.websocket.errors import BadFrameError
from magnetar.broker.websocket.frames import id_text, parse_command, time_text
from magnetar.sdk.message_id import MessageId

DAY_MS = 86_400_000


@pytest.mark.parametrize(
    ("epoch_ms", "expected"),
    [
        (0, "1970-01-01T00:00:00.000Z"),
        (1_234, "1970-01-01T00:00:01.234Z"),
        (-DAY_MS, "1969-12-31T00:00:00.000Z"),
        ((1 << 64) - DAY_MS, "1969-12-31T00:00:00.000Z"),  # As the metadata holds it.
        (1 << 60, "9999-12-31T23:59:59.999Z"),
        ((1 << 64) - (1 << 60), "0001-01-01T00:00:00.000Z"),
    ],
)
def test_a_time_is_shown_as_near_as_the_calendar_allows(epoch_ms: int, expected: str) -> None:
    assert time_text(epoch_ms) == expected


@pytest.mark.parametrize(
    "message_id",
    [MessageId(1, 2, 0, -1, (1 << 20) + 1), MessageId(1, 2, (1 << 31) - 1, -1, 2)],
    ids=["size", "index"],
)
def test_an_id_in_a_batch_that_is_too_large_to_be_one_is_refused(message_id: MessageId) -> None:
    with pytest.raises(BadFrameError, match="a batch has at most 1048576 messages"):
        parse_command(json.dumps({"messageId": id_text(message_id)}).encode())
