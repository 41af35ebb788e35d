"""Interceptors that fail: nothing is lost, and the log says which one it was, and why."""

import logging

import pytest

from magnetar.sdk.errors import SdkError
from magnetar.sdk.interceptors import (
    ConsumerInterceptor,
    Interceptors,
    ProducerInterceptor,
    ProducerInterceptors,
)
from magnetar.sdk.message import Message
from magnetar.sdk.message_id import MessageId
from magnetar.sdk.producing.outgoing import OutgoingMessage

SENT = OutgoingMessage(payload=b"x")


class Passing(ProducerInterceptor):
    """Looks, and changes nothing."""

    def __init__(self) -> None:
        self.told: list[tuple[MessageId | None, SdkError | None]] = []

    def before_send(self, topic: str, message: OutgoingMessage) -> OutgoingMessage:
        return message

    def on_sent(
        self,
        topic: str,
        message: OutgoingMessage,
        message_id: MessageId | None,
        error: SdkError | None,
    ) -> None:
        self.told.append((message_id, error))


class Raising(Passing):
    def before_send(self, topic: str, message: OutgoingMessage) -> OutgoingMessage:
        raise LookupError("no header of that name")

    def on_sent(
        self,
        topic: str,
        message: OutgoingMessage,
        message_id: MessageId | None,
        error: SdkError | None,
    ) -> None:
        raise LookupError("nobody to tell")


class Forgetful(Passing):
    def before_send(self, topic: str, message: OutgoingMessage) -> OutgoingMessage:
        return None  # type: ignore[return-value]  # What a forgotten `return` gives.


class RaisingConsumer(ConsumerInterceptor):
    def before_consume(self, message: Message) -> Message:
        raise LookupError("unreadable")

    def on_acknowledge(self, topic: str, message_id: MessageId) -> None:
        raise LookupError("nobody to tell")


def test_a_failing_interceptor_of_a_producer_is_named_and_passed_over(
    caplog: pytest.LogCaptureFixture,
) -> None:
    after = Passing()
    chain = ProducerInterceptors("t", (Raising(), after))
    assert chain.before_send(SENT) is SENT
    chain.on_sent(SENT, MessageId(1, 2), None)
    assert after.told == [(MessageId(1, 2), None)]
    before, sent = caplog.records
    for record, call in ((before, "before_send"), (sent, "on_sent")):
        text = record.getMessage()
        assert "test_intercepting.Raising" in text
        assert f"call={call}" in text
        assert "LookupError" in text
        assert "topic=t" in text
        assert record.levelno == logging.WARNING
        assert record.exc_info is not None


def test_what_is_no_message_does_not_replace_one(caplog: pytest.LogCaptureFixture) -> None:
    assert ProducerInterceptors("t", (Forgetful(),)).before_send(SENT) is SENT
    (record,) = caplog.records
    assert "test_intercepting.Forgetful" in record.getMessage()
    assert "NoneType" in record.getMessage()


def test_a_failing_interceptor_of_a_consumer_is_named_and_passed_over(
    caplog: pytest.LogCaptureFixture,
) -> None:
    chain = Interceptors("t", (RaisingConsumer(), ConsumerInterceptor()))
    received = Message(b"x", None, -1, None)  # type: ignore[arg-type]  # Nobody asks its entry.
    assert chain.before_consume(received) is received
    chain.tell("on_acknowledge", [MessageId(1, 2)])
    texts = [record.getMessage() for record in caplog.records]
    assert "RaisingConsumer call=before_consume" in texts[0]
    assert "RaisingConsumer call=on_acknowledge" in texts[1]


def test_a_cancellation_goes_through() -> None:
    class Cancelled(Passing):
        def before_send(self, topic: str, message: OutgoingMessage) -> OutgoingMessage:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        ProducerInterceptors("t", (Cancelled(),)).before_send(SENT)
