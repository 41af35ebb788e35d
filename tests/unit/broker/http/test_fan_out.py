"""Answers of other brokers that are no answers, and what a list or a sum makes of them."""

from typing import Any, cast

import pytest

from magnetar.broker.base.errors import BrokerMetadataError, TopicNotFoundError
from magnetar.broker.base.http_client import Answer
from magnetar.broker.http.context import HttpContext
from magnetar.broker.http.fan_out import value_in
from magnetar.broker.http.refusals import ElsewhereError
from magnetar.broker.http.scalable import _Topics
from magnetar.broker.http.topics import _asked
from magnetar.cursors import CursorClosedError
from magnetar.ledger.errors import LogFencedError
from magnetar.sdk.wire import TopicName

SEGMENT = TopicName.parse("persistent://public/default/t")
NO_ANSWERS = [
    Answer(200, b"<html>"),
    Answer(200, b'"text"'),
    Answer(200, b""),
    Answer(500, b'["t"]'),
    Answer(200, b"[" * 100_000),
]


class Broker:
    """A broker that owns nothing; the owner gives one answer to all requests."""

    def __init__(self, answer: Answer, error: Exception | None = None) -> None:
        self.admin = self
        self._answer = answer
        self._error = error or ElsewhereError("http://owner:8080")

    async def served(self, _: TopicName) -> Any:
        raise self._error

    async def ask(self, *_: Any) -> Answer:
        return self._answer


def context_of(answer: Answer, error: Exception | None = None) -> HttpContext:
    return cast(HttpContext, Broker(answer, error))


def test_an_answer_has_the_value_that_is_asked_for() -> None:
    assert value_in(Answer(200, b'["t"]'), list, "the owner") == ["t"]
    assert value_in(Answer(200, b'{"a": 1}'), dict, "the owner") == {"a": 1}


@pytest.mark.parametrize("answer", NO_ANSWERS)
def test_an_answer_without_that_value_names_who_gave_it(answer: Answer) -> None:
    with pytest.raises(BrokerMetadataError, match="the owner of t"):
        value_in(answer, list, "the owner of t")


@pytest.mark.parametrize("answer", NO_ANSWERS)
async def test_a_broker_without_a_list_of_names_is_left_out(answer: Answer) -> None:
    assert await _asked(context_of(answer), "http://owner:8080", "/path") == []


async def test_the_names_that_another_broker_has_are_listed() -> None:
    context = context_of(Answer(200, b'["a", "b"]'))
    assert await _asked(context, "http://owner:8080", "/path") == ["a", "b"]


@pytest.mark.parametrize("answer", NO_ANSWERS)
async def test_a_segment_whose_owner_has_no_numbers_fails_no_statistics(answer: Answer) -> None:
    assert await _Topics(context_of(answer)).numbers_of(SEGMENT) == {}


@pytest.mark.parametrize(
    "error",
    [
        LogFencedError("another broker has it"),
        CursorClosedError("it is handed over"),
        TopicNotFoundError("t"),
    ],
)
async def test_a_segment_that_cannot_be_read_here_fails_no_statistics(error: Exception) -> None:
    assert await _Topics(context_of(NO_ANSWERS[0], error)).numbers_of(SEGMENT) == {}


async def test_a_segment_has_the_numbers_of_its_owner() -> None:
    topics = _Topics(context_of(Answer(200, b'{"msgRateIn": 1.5}')))
    assert await topics.numbers_of(SEGMENT) == {"msgRateIn": 1.5}
