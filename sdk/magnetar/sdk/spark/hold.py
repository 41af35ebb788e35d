"""The subscription that keeps what a running query may still need from being deleted.

One durable subscription on each topic (or partition) of the query, without a consumer. Its position
follows the checkpoint: when Spark says that a micro-batch is done, what was before goes free, but
for what the next one may still need (`releasable`). Spark says so when the next micro-batch is
built, so that the last one is held until there is another.

A subscription also tells what was lost: if it stands behind the checkpoint although only this query
moves it, messages went without having been read (by expiry, or a backlog quota).
"""

from collections.abc import Iterable

from magnetar.sdk.message_id import MessageId
from magnetar.sdk.spark.admin_client import AdminClient, RefusedError, topic_path
from magnetar.sdk.spark.offsets import BEFORE_FIRST, reach
from magnetar.sdk.wire.topic_name import TopicName

_NOT_FOUND, _CONFLICT = 404, 409


class Hold:
    """The subscriptions of one query.

    Methods raise:
        UnreachableError, RefusedError: from the brokers.
    """

    def __init__(self, admin: AdminClient, subscription: str) -> None:
        self._admin = admin
        self.subscription = subscription
        self._held: dict[str, MessageId] = {}
        """Where each topic's subscription stands, as far as this process knows."""

    def keep(self, topic: str, through: MessageId, stands_at: MessageId | None) -> None:
        """See that everything behind `through` is held; `stands_at` is where the subscription is
        now, None if there is none. One that holds more is left alone."""
        if stands_at is None or (topic not in self._held and reach(stands_at) > reach(through)):
            self._take(topic, through)
        else:
            self._held.setdefault(topic, stands_at)

    def stands_at(self, topic: str) -> MessageId:
        """Everything behind this is held, as far as this process knows."""
        return self._held.get(topic, BEFORE_FIRST)

    def drop(self, topics: Iterable[str]) -> None:
        """Nothing is to be held any more: the subscriptions go."""
        for topic in topics:
            path = topic_path(TopicName.parse(topic), "subscription", self.subscription)
            try:
                self._admin.delete(path)
            except RefusedError as error:
                if error.status != _NOT_FOUND:
                    raise
        self._held.clear()

    def _take(self, topic: str, through: MessageId) -> None:
        """Hold everything behind `through`; a subscription that stands elsewhere is moved there."""
        name = TopicName.parse(topic)
        try:
            self._admin.put(topic_path(name, "subscription", self.subscription), _behind(through))
        except RefusedError as error:
            if error.status != _CONFLICT:
                raise
            self._move(name, through)
        self._held[topic] = through

    def release(self, topic: str, through: MessageId) -> None:
        """Everything up to `through` is not needed any more."""
        if reach(self.stands_at(topic)) >= reach(through):
            return
        try:
            self._move(TopicName.parse(topic), through)
        except RefusedError as error:
            if error.status != _NOT_FOUND:
                raise
            return  # The topic was deleted, or somebody deleted the subscription: nothing to hold.
        self._held[topic] = through

    def _move(self, topic: TopicName, through: MessageId) -> None:
        path = topic_path(topic, "subscription", self.subscription, "resetcursor")
        self._admin.post(path, _behind(through))


def _behind(through: MessageId) -> dict[str, object]:
    """The place behind an offset, as the administration interface names it."""
    return {
        "ledgerId": through.ledger_id,
        "entryId": through.entry_id,
        # Of an entry that is read in part, all is held.
        "isExcluded": through.entry_id >= 0 and through.batch_index < 0,
    }
