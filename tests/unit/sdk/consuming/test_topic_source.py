"""The watch of a pattern at the broker, with a connection that does no I/O."""

import asyncio
import re
from typing import cast

import pytest

from magnetar.sdk.connection import TopicListener
from magnetar.sdk.consuming.topic_source import MatchingTopics, TopicPattern
from magnetar.sdk.errors import OperationTimeoutError, SdkError
from magnetar.sdk.lookup import Lookup
from magnetar.sdk.wire.errors import AuthorizationError
from magnetar.sdk.wire.pulsar_pb2 import BaseCommand


class Connection:
    """Answers WATCH_TOPIC_LIST as it is told to; also its own lookup."""

    watches_topics = is_open = True

    def __init__(self, error: BaseException | None = None) -> None:
        self.error = error
        self.breaks = False
        self.topic_watchers: dict[int, TopicListener] = {}
        self.asked = 0
        self.sent: list[int] = []

    async def service_connection(self) -> "Connection":
        return self

    def next_request_id(self) -> int:
        return 1

    async def request(self, request_id: int, command: BaseCommand) -> None:
        self.asked += 1
        if self.breaks:
            (watcher,) = self.topic_watchers.values()
            self.topic_watchers.clear()
            watcher.on_session_lost(self)  # type: ignore[arg-type]  # A connection in its place.
        if self.error is not None:
            raise self.error

    def send(self, command: BaseCommand) -> None:
        self.sent.append(command.type)


def matching(connection: Connection) -> MatchingTopics:
    pattern = TopicPattern.parse(re.compile("orders-.*"))
    return MatchingTopics(cast(Lookup, connection), pattern, 7, lambda: None)


@pytest.mark.parametrize(
    ("error", "attempts", "sent"),
    [
        (AuthorizationError("no"), 1, []),
        # The broker may watch all the same.
        (OperationTimeoutError("late"), 2, [BaseCommand.WATCH_TOPIC_LIST_CLOSE]),
    ],
)
async def test_a_watch_that_failed_leaves_no_watcher_behind(
    error: SdkError, attempts: int, sent: list[int]
) -> None:
    connection = Connection(error)
    topics = matching(connection)
    await topics.watch()
    assert connection.topic_watchers == {}
    assert connection.sent == sent
    await topics.watch()
    assert connection.asked == attempts


async def test_a_cancelled_watch_leaves_no_watcher_behind() -> None:
    connection = Connection(asyncio.CancelledError())
    with pytest.raises(asyncio.CancelledError):
        await matching(connection).watch()
    assert connection.topic_watchers == {}


async def test_a_watch_whose_connection_breaks_with_the_answer_is_asked_for_again() -> None:
    connection = Connection()
    topics = matching(connection)
    connection.breaks = True
    await topics.watch()
    connection.breaks = False
    await topics.watch()
    assert connection.asked == 2
    assert connection.topic_watchers == {7: topics}
    topics.close()
    assert connection.topic_watchers == {}
    assert connection.sent == [BaseCommand.WATCH_TOPIC_LIST_CLOSE]
