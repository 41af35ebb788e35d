"""WebSocket frames: whatever a client says is answered; what is well-formed comes through."""

import json
from base64 import b64encode

from hypothesis import given
from hypothesis import strategies as st

from magnetar.broker.websocket.frames import id_text, parse_command, parse_publish, time_text
from magnetar.sdk.message_id import MessageId
from tests.fuzz.websocket_side import try_consumer, try_producer, try_target

_SCALARS = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(st.characters(exclude_categories=()))
)
_VALUES = st.recursive(
    _SCALARS, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=5
)
_NAMES = st.sampled_from(
    (
        *("payload", "properties", "context", "key", "eventTime", "deliverAt", "deliverAfterMs"),
        *("replicationClusters", "type", "messageId", "permitMessages"),
    )
)
_FRAMES = (
    st.dictionaries(_NAMES, _VALUES | st.sampled_from(("AA==", "permit", "CAAQAw=="))).map(
        lambda body: json.dumps(body).encode()
    )
    | _VALUES.map(lambda body: json.dumps(body).encode())
    | st.binary()
)
_TEXT = st.text()
_IDS = st.builds(
    MessageId,
    st.integers(0, (1 << 63) - 1),
    st.integers(0, (1 << 63) - 1),
    st.integers(-1, 1000),
    st.integers(-1, 1000),
    st.integers(0, 1000),
)


@given(_FRAMES)
def test_any_frame_is_understood_or_answered(data: bytes) -> None:
    try_producer(data)
    try_consumer(data)


@given(st.text(), st.sampled_from(("/ws/v2/producer/", "/ws/v2/consumer/", "/ws/v3/consumer/", "")))
def test_any_path_is_an_endpoint_or_refused(text: str, start: str) -> None:
    try_target(start + text)


@given(st.binary(), _TEXT, st.dictionaries(_TEXT, _TEXT), st.integers(0, 1 << 44))
def test_a_publish_comes_through_whole(
    payload: bytes, key: str, properties: dict[str, str], event_time_ms: int
) -> None:
    body = {
        "payload": b64encode(payload).decode(),
        "key": key,
        "properties": properties,
        "context": key,
        "eventTime": time_text(event_time_ms),
    }
    publish = parse_publish(json.dumps(body).encode())
    assert (publish.payload, publish.key, publish.context) == (payload, key, key)
    assert publish.properties == properties
    assert publish.event_time_ms == event_time_ms


@given(_IDS)
def test_an_id_comes_back_as_it_went(message_id: MessageId) -> None:
    frame = json.dumps({"messageId": id_text(message_id)}).encode()
    assert parse_command(frame).message_id == message_id
