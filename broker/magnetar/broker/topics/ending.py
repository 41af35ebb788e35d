"""How topics end on this broker: closed, handed over, or dropped.

*Closed*: the ledgers and cursors are closed in the metadata. *Handed over*: the pending publishes
are answered first, and clients are told the next owner. *Dropped*, if the topic may have another
owner: nothing more is written, sent or answered.
"""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from functools import partial

import structlog

from magnetar.broker.base.settings.broker import BrokerSettings
from magnetar.broker.cluster.ownership import Destination, Tenure
from magnetar.broker.topic import Topic
from magnetar.broker.topics.table import Closing, ServedLog, TopicTable
from magnetar.cursors import CursorError, CursorUnavailableError
from magnetar.ledger.errors import LedgerError, LogFencedError
from magnetar.sdk.wire import TopicName

_log = structlog.get_logger()

_HAND_OVERS_AT_ONCE = 256
"""Topics that are closed concurrently; each waits for the metadata store. Of several bundles the
first is closed first: its next owner begins while others are still being closed."""


class TopicEnds:
    """Closes, hands over and drops topics."""

    def __init__(self, settings: BrokerSettings, table: TopicTable) -> None:
        self._settings = settings
        self._table = table
        self._moving: dict[TopicName, asyncio.Task[None]] = {}
        """Topics that are being handed over."""
        self._hand_overs_at_once = asyncio.Semaphore(_HAND_OVERS_AT_ONCE)
        self._given_up: set[Topic] = set()
        """Topics that are being dropped while this broker still owns them."""
        self.on_closing: list[Callable[[Topic], None]] = []
        """Called with each topic that begins to close, for whatever reason."""
        self.fenced = 0
        """Topics that were dropped because another broker has them, or may have."""

    def attach(self, topic: Topic, log: ServedLog) -> None:
        """Connect a topic that is being opened to its ends: by fencing, or by its own request."""
        topic.reload = partial(self._reload, topic)
        topic.reopen = partial(self._reopen, topic)
        log.on_fenced(partial(self.fence, topic))

    def check_wanted(self, topic: Topic, log: ServedLog) -> None:
        """Refuse a topic that ended while it was being opened.

        Raises:
            LogFencedError
        """
        if topic.is_closed:
            reason = "was taken over while it was loaded"
            log.abandon(f"it {reason}")
            raise LogFencedError(f"{topic.name} {reason}")
        if not self.is_wanted(topic.name, topic.tenure):
            reason = "was lost while it was loaded"
            log.abandon(f"the lease {reason}")
            raise LogFencedError(f"the lease of {topic.name} {reason}")

    def is_wanted(self, name: TopicName, tenure: Tenure) -> bool:
        """Whether a topic that is being opened may still be this broker's: its next owner is left
        alone."""
        return name not in self._table.unwanted and tenure.holds()

    # Handing over

    def names_of(self, belongs: Callable[[TopicName], bool]) -> Sequence[TopicName]:
        """Return matching topics that are served, being loaded or being closed here."""
        return self._table.names_of(belongs)

    async def hand_over(
        self, names: Sequence[TopicName], destination: Destination | None, *, timeout_s: float
    ) -> None:
        """Close topics so that another owner can open them at once, and tell their clients where.

        Pending publishes are answered first. Topics not closed in time are dropped: the next owner
        recovers them.
        """

        async def hand_over(name: TopicName) -> None:
            async with self._hand_overs_at_once:
                await asyncio.wait([self._start_moving(name, destination)])

        try:
            async with asyncio.timeout(timeout_s):
                await asyncio.gather(*map(hand_over, names))
        except TimeoutError:
            _log.warning("topics_not_handed_over_in_time", timeout_s=timeout_s)
            self.drop(names, "it could not be closed in time")

    def _start_moving(self, name: TopicName, destination: Destination | None) -> asyncio.Task[None]:
        """Start moving a topic once; of several calls, the first destination counts."""
        moving = self._moving.get(name)
        if moving is None:
            moving = self._moving[name] = asyncio.get_running_loop().create_task(
                self._move(name, destination), name=f"hand-over-{name}"
            )
            moving.add_done_callback(lambda _: self._moving.pop(name))
        return moving

    async def _move(self, name: TopicName, destination: Destination | None) -> None:
        table = self._table
        if (loading := table.loading.get(name)) is not None:
            await asyncio.wait([loading])
        topic = table.served.get(name)
        if topic is not None:
            await topic.drain(self._settings.publish_drain_timeout_ms / 1000)
            if table.is_served(topic):
                self._start_closing(topic, destination)
        if (closing := table.closing.get(name)) is not None:
            await asyncio.wait([closing.task])

    def put_to_rest(self, topic: Topic) -> asyncio.Task[None] | None:
        """Begin to close a topic that the broker loaded for itself; return the closing task.

        None: a client has requested the topic meanwhile, or it is closed already.
        """
        if topic.use.is_asked_for or not self._table.is_served(topic):
            return None
        self._start_closing(topic)
        return self._table.closing[topic.name].task

    def _reopen(self, topic: Topic, reason: str) -> None:
        """Close a topic in order; its clients reconnect and have it loaded again."""
        _log.info("topic_reopened", topic=str(topic.name), reason=reason)
        self._start_moving(topic.name, None)

    # Dropping

    def drop(self, names: Sequence[TopicName], reason: str, *, is_ours: bool = False) -> None:
        """Stop serving topics at once: nothing more is written, answered or sent; clients look them
        up.

        `is_ours`: no other broker has the topics, for example because they are being deleted.
        """
        table = self._table
        for name in names:
            if name in table.loading:
                table.unwanted.add(name)
            if (closing := table.closing.get(name)) is not None:
                closing.abandon(reason)
            topic = table.served.get(name)
            if topic is not None:
                if is_ours:
                    self._given_up.add(topic)
                self.fence(topic, reason)
                self._given_up.discard(topic)

    def _reload(self, topic: Topic, reason: str) -> None:
        """Drop a topic that this broker owns, so that it is recovered at the next request."""
        _log.warning("topic_reloaded", topic=str(topic.name), reason=reason)
        if topic in self._table.logs:
            self.fence(topic, reason)

    def fence(self, topic: Topic, reason: str = "another owner has it, or may have") -> None:
        """Drop a topic that another broker has, or may have: write nothing; clients look it up.

        A cursor that was taken over is reason enough: the log may learn of it later.
        """
        if not self._table.is_served(topic):
            topic.is_closed = True  # still loading: the loader checks this at the end
            return
        if topic in self._given_up:
            _log.info("topic_dropped", topic=str(topic.name))
        else:
            self.fenced += 1
            _log.warning("topic_fenced", topic=str(topic.name))
        self._start_closing(topic, dropped=reason)

    # Closing

    def _start_closing(
        self, topic: Topic, destination: Destination | None = None, *, dropped: str = ""
    ) -> None:
        """Begin to close a topic. `dropped`: why nothing more is written; empty: it closes in
        order."""
        table = self._table
        for callback in self.on_closing:
            callback(topic)
        closing = Closing(topic, table.take_out(topic), topic.durable_cursors())
        if (
            dropped
        ):  # only now: an abandoned feature may ask for a reload, which drops what is served
            closing.abandon(dropped)
        topic.disconnect_all(destination)
        table.closing[topic.name] = closing
        closing.task = asyncio.get_running_loop().create_task(
            self._close(closing), name=f"close-{topic.name}"
        )
        closing.task.add_done_callback(lambda _: table.closing.pop(topic.name))

    async def _close(self, closing: Closing) -> None:
        """Close a topic within a time limit: a stuck close must not keep it from its next owner
        (10.4)."""
        try:
            async with asyncio.timeout(self._settings.topic_close_timeout_ms / 1000):
                await _close_parts(closing)
        except TimeoutError:
            _log.warning("topic_not_closed_in_time", topic=str(closing.topic.name))
            closing.abandon("it could not be closed in time")
        _log.info("topic_closed", topic=str(closing.topic.name))

    async def close_all(self, timeout_s: float) -> None:
        """Close every topic; what is not closed in time is left to the next owner's recovery."""
        table = self._table
        table.is_stopping = True
        for loading in table.loading.values():
            loading.cancel()
        await self.hand_over(table.names_of(lambda _: True), None, timeout_s=timeout_s)
        unfinished = [*(each.task for each in table.closing.values()), *table.loading.values()]
        if unfinished:
            _log.warning("topics_not_closed", topics=len(unfinished))
            for task in unfinished:
                task.cancel()
            await asyncio.wait(unfinished, timeout=1.0)


async def _close_parts(closing: Closing) -> None:
    features = closing.topic.features
    for feature in features:
        await feature.stopped()
    ends: list[Coroutine[object, object, None]]
    ends = [cursor.close() for cursor in closing.cursors]
    ends.extend(work for feature in features if (work := feature.ending()) is not None)
    for result in await asyncio.gather(closing.log.close(), *ends, return_exceptions=True):
        if isinstance(result, CursorUnavailableError):
            # Nothing is lost: unsaved acknowledgements only cause redeliveries.
            _log.warning("cursor_left_unsaved", topic=str(closing.topic.name), error=str(result))
        elif isinstance(result, LedgerError):
            _log.warning("log_not_closed", topic=str(closing.topic.name), error=str(result))
        elif isinstance(result, BaseException) and not isinstance(result, CursorError):
            raise result
