"""What a message says of itself has types, and what has another is named."""

from typing import Any

import pytest

from magnetar.sdk import OutgoingMessage

MISFITS: list[tuple[dict[str, Any], str]] = [
    ({"key": 5}, "key must be text or bytes, not 5"),
    ({"ordering_key": "text"}, "ordering_key must be bytes, not 'text'"),
    ({"properties": {"a": 1}}, "properties must map text to text, not {'a': 1}"),
    ({"properties": ["a"]}, "properties must map text to text"),
    ({"event_time_ms": 1.5}, "event_time_ms must be whole milliseconds since 1970, not 1.5"),
    ({"replicate_to": "west"}, "replicate_to must be names of clusters, not 'west'"),
    ({"replicate_to": [1]}, "replicate_to must be names of clusters, not \\[1\\]"),
    ({"deliver_at_ms": "soon"}, "deliver_at_ms must be whole milliseconds since 1970, not 'soon'"),
]


@pytest.mark.parametrize(("fields", "message"), MISFITS, ids=[each[1] for each in MISFITS])
def test_what_is_of_no_type_that_it_may_be_is_named(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(TypeError, match=message):
        OutgoingMessage(payload=b"x", **fields).metadata()


@pytest.mark.parametrize(
    ("name", "time_ms"),
    [("event_time_ms", -1), ("event_time_ms", 1 << 64), ("deliver_at_ms", 1 << 63)],
)
def test_a_time_out_of_range_is_named(name: str, time_ms: int) -> None:
    fields: dict[str, Any] = {name: time_ms}
    with pytest.raises(ValueError, match=f"{name} is out of range: {time_ms}"):
        OutgoingMessage(payload=b"x", **fields).metadata()
