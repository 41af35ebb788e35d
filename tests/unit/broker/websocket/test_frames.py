"""Times in the frames of messages."""

import pytest

from magnetar.broker.websocket.frames import time_text

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
