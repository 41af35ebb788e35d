"""One letter for each message that is given up."""

import asyncio
from types import SimpleNamespace
from typing import cast

import pytest

from magnetar.sdk.consuming import dead_letters
from magnetar.sdk.consuming.dead_letters import DeadLetters, LettersOnce
from magnetar.sdk.consuming.message_copies import MessageCopies
from magnetar.sdk.context import ClientContext
from magnetar.sdk.message import Message
from magnetar.sdk.message_id import MessageId
from magnetar.sdk.settings import DeadLetterPolicy
from magnetar.sdk.wire.topic_name import TopicName


def message(entry_id: int, index: int = -1) -> Message:
    return cast(Message, SimpleNamespace(message_id=MessageId(1, entry_id, index)))


def test_what_is_on_its_way_or_stored_is_not_stored_again() -> None:
    once = LettersOnce()
    one, other, same = message(1, 0), message(1, 1), message(1, 0)
    assert once.sort([one]) == ([one], [])
    assert once.sort([same, other]) == ([other], [])
    once.stored(one)
    assert once.sort([same, other]) == ([], [same])
    once.stored(other)
    assert once.sort([other, same]) == ([], [other, same])


def test_what_failed_is_stored_when_it_comes_again() -> None:
    once = LettersOnce()
    before, now = message(1), message(1)
    once.sort([before])
    once.sort([now])
    assert once.failed(before) is now
    assert once.sort([now]) == ([now], [])


def test_what_is_delivered_again_may_have_another_letter() -> None:
    once = LettersOnce()
    some = [message(1, 0), message(1, 1), message(2)]
    once.sort(some)
    for each in some:
        once.stored(each)
    once.delivered(1, 1)
    assert once.sort(some) == (some[:2], some[2:])


def test_so_many_entries_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dead_letters, "LETTERS_REMEMBERED_MAX", 3)
    once = LettersOnce()
    some = [message(entry_id) for entry_id in range(4)]
    once.sort(some)
    for each in some:
        once.stored(each)
    assert once.sort(some) == (some[:1], some[1:])


async def test_a_message_comes_again_after_any_failure_to_store_its_letter(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def store(*_: object, **__: object) -> None:
        failed.set()
        raise LookupError("a defect")

    class Giver:
        def acknowledge(self, what: Message) -> None:
            raise AssertionError("it has no letter")

        def negative_acknowledge(self, what: Message) -> None:
            again.append(what)

    failed, again = asyncio.Event(), list[Message]()
    monkeypatch.setattr(MessageCopies, "store", store)
    topic = TopicName.parse("t")
    context = cast(ClientContext, SimpleNamespace(client=None))
    letters = DeadLetters(context, topic, "s", DeadLetterPolicy(redeliveries_max=1))
    given_up = cast(
        Message,
        SimpleNamespace(message_id=MessageId(1, 0), topic=str(topic), properties={}),
    )
    for _ in range(2):
        letters.put(Giver(), [given_up])
        async with asyncio.timeout(5):
            await failed.wait()
        await asyncio.sleep(0)
        failed.clear()
    assert again == [given_up] * 2
    await letters.close()
