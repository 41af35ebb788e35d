"""The subscription that keeps what a running query may still need from being deleted.

One durable subscription on each topic (or partition) of the query, without a consumer. Its position
follows the checkpoint: when Spark says that a micro-batch is done, what was before goes free, but
for what the next one may still need (`releasable`). Spark says so when the next micro-batch is
built: the last one is held until there is another, or until the query has been idle for a while.

A subscription also tells what was lost: if it stands behind the checkpoint although only this query
moves it, messages went without having been read (by expiry, or a backlog quota).
"""

from collections.abc import Iterable, Mapping

from magnetar.arrow.stored.admin_client import AdminClient, Answers
from magnetar.arrow.stored.offsets import BEFORE_FIRST, reach
from magnetar.sdk.message_id import MessageId

_NOT_FOUND = 404


class Hold:
    """The subscriptions of one query. What is to be done is done for all topics together.

    Methods raise:
        UnreachableError, RefusedError: from the brokers.
    """

    def __init__(self, admin: AdminClient, subscription: str) -> None:
        self._admin = admin
        self.subscription = subscription
        self._held: dict[str, MessageId] = {}
        """Where each topic's subscription stands, as far as this process knows."""

    def keep(self, topics: Mapping[str, tuple[MessageId, MessageId | None]]) -> None:
        """See that everything behind a place in each topic is held; with it goes where the topic's
        subscription is now, None if there is none. One that holds more is left alone."""
        taken = {}
        for topic, (through, stands_at) in topics.items():
            if stands_at is None or (topic not in self._held and reach(stands_at) > reach(through)):
                taken[topic] = through
            else:
                self._held.setdefault(topic, stands_at)
        answers = self._change("hold", taken)
        for error in answers.refused.values():
            raise error

    def stands_at(self, topic: str) -> MessageId:
        """Everything behind this is held, as far as this process knows."""
        return self._held.get(topic, BEFORE_FIRST)

    def release(self, topics: Mapping[str, MessageId], *, is_idle: bool = False) -> None:
        """Everything up to these places is not needed any more; `is_idle`: unless a message in
        chunks begins right before one, whose end may still come."""
        moved = {
            topic: through
            for topic, through in topics.items()
            if reach(self.stands_at(topic)) < reach(through)
        }
        answers = self._change("move", moved, sparesUnfinished=is_idle)
        for error in answers.refused.values():
            # The topic was deleted, or somebody deleted the subscription: nothing to hold.
            if error.status != _NOT_FOUND:
                raise error

    def drop(self, topics: Iterable[str]) -> None:
        """Nothing is to be held any more: the subscriptions go."""
        given = list(topics)
        answers = self._admin.ask_topics(
            "subscriptions",
            given,
            values=dict.fromkeys(given),
            subscription=self.subscription,
            action="delete",
        )
        for error in answers.refused.values():
            if error.status != _NOT_FOUND:
                raise error
        self._held.clear()

    def _change(self, action: str, places: Mapping[str, MessageId], **more: object) -> Answers:
        """Move the subscriptions of these topics, and note which stand there now."""
        if not places:
            return Answers({}, {})
        answers = self._admin.ask_topics(
            "subscriptions",
            places,
            values={topic: _behind(through) for topic, through in places.items()},
            subscription=self.subscription,
            action=action,
            **more,
        )
        for topic, done in answers.found.items():
            if not done.get("isUnfinished"):
                self._held[topic] = places[topic]
        return answers


def _behind(through: MessageId) -> dict[str, object]:
    """The place behind an offset, as the administration interface names it."""
    return {
        "ledgerId": through.ledger_id,
        "entryId": through.entry_id,
        # Of an entry that is read in part, all is held.
        "isExcluded": through.entry_id >= 0 and through.batch_index < 0,
    }
