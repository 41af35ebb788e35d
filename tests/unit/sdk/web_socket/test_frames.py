"""Errors of frames, and of upgrades that were refused with an HTTP status."""

import base64
import json

import pytest

from magnetar.sdk.errors import ServiceError
from magnetar.sdk.web_socket.frames import parse_message, parse_outcome, refusal
from magnetar.sdk.wire.errors import (
    MalformedFrameError,
    ProducerQuotaExceededError,
    ServiceNotReadyError,
    TooManyRequestsError,
    TopicTerminatedError,
)

TOPIC = "persistent://public/default/terminated-quota-sessions"


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        (f"{TOPIC} is terminated: it takes no more messages", TopicTerminatedError),
        ("Topic was already terminated", TopicTerminatedError),
        (
            f"the backlog quota of {TOPIC} is used up: 10 bytes of 5",
            ProducerQuotaExceededError,
        ),
        ("Cannot create producer on topic with backlog quota exceeded", ProducerQuotaExceededError),
        ("there are 20000 WebSocket sessions already", TooManyRequestsError),
        ("the broker stops", ServiceNotReadyError),
        (f"{TOPIC}: no upstream", ServiceNotReadyError),
        ("", ServiceNotReadyError),
    ],
)
def test_a_503_says_by_its_text_what_it_is(body: str, kind: type[ServiceError]) -> None:
    error = refusal(503, body, f"producer of {TOPIC}")
    assert type(error) is kind
    assert (body or "no reason given") in str(error)
    assert error.retryable is kind.retryable


def test_what_passes_by_itself_is_tried_again() -> None:
    assert refusal(503, "the broker stops", "p").retryable
    assert refusal(503, "there are 3 WebSocket sessions already", "p").retryable
    assert not refusal(503, "t is terminated", "p").retryable


@pytest.mark.parametrize(
    "message_id",
    [None, 5, "not base64!", *(base64.b64encode(each).decode() for each in (b"", b"\xff"))],
)
def test_a_frame_without_a_readable_message_id_is_malformed(message_id: object) -> None:
    frame = json.dumps({"messageId": message_id, "payload": "", "result": "ok", "context": "1"})
    with pytest.raises(MalformedFrameError):
        parse_message(frame, TOPIC)
    with pytest.raises(MalformedFrameError):
        parse_outcome(frame)
